//! What every policy here is built of: an ordered set of blocks.

use std::collections::HashMap;

const NONE: usize = usize::MAX;

struct Node {
    block: u64,
    newer: usize,
    older: usize,
}

/// Blocks in the order in which they were pushed: each at most once, each found and taken out in constant time.
pub struct Queue {
    nodes: Vec<Node>,
    free: Vec<usize>,
    at: HashMap<u64, usize>,
    newest: usize,
    oldest: usize,
}

impl Queue {
    pub fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), at: HashMap::new(), newest: NONE, oldest: NONE }
    }
    pub fn len(&self) -> usize {
        self.at.len()
    }
    pub fn contains(&self, block: u64) -> bool {
        self.at.contains_key(&block)
    }
    pub fn oldest(&self) -> Option<u64> {
        self.nodes.get(self.oldest).map(|n| n.block)
    }
    /// The block that was pushed next after this one.
    pub fn newer(&self, block: u64) -> Option<u64> {
        self.nodes.get(self.nodes[self.at[&block]].newer).map(|n| n.block)
    }
    /// Adds a block, which is not in the queue, as its newest.
    pub fn push(&mut self, block: u64) {
        let node = Node { block, newer: NONE, older: self.newest };
        let i = self.free.pop().unwrap_or(self.nodes.len());
        if i == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[i] = node;
        }
        match self.newest {
            NONE => self.oldest = i,
            newest => self.nodes[newest].newer = i,
        }
        self.newest = i;
        assert!(self.at.insert(block, i).is_none(), "block {block} was in the queue");
    }
    /// Takes the oldest block out.
    pub fn pop(&mut self) -> Option<u64> {
        let block = self.oldest()?;
        self.remove(block);
        Some(block)
    }
    /// Takes a block out. False if it was not in.
    pub fn remove(&mut self, block: u64) -> bool {
        let Some(i) = self.at.remove(&block) else { return false };
        let Node { newer, older, .. } = self.nodes[i];
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older].newer = newer,
        }
        self.free.push(i);
        true
    }
    /// Makes a block the newest. False if it is not in.
    pub fn touch(&mut self, block: u64) -> bool {
        let was_in = self.remove(block);
        if was_in {
            self.push(block);
        }
        was_in
    }
}
