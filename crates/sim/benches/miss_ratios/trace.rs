//! Block traces, from text in one of two formats, told apart by the first line.
//!
//! * `version,time,op,size,lbn`: the requests of a virtual disk (VMware vSCSI, as libCacheSim's samples have them). The op
//!   is a SCSI opcode in hex, the size is in bytes, the lbn in sectors of 512 bytes. A request is an access to each
//!   block of 4 KiB that it touches.
//! * Three fields between tabs: time, block identity, size (Tencent CBS, as 3L-Cache's samples have them). A line is
//!   one access to one object of unit size, for a request whose neighbours are unknown cannot be split.

use std::collections::HashSet;

const VSCSI: &str = "version,time,op,size,lbn";
const SECTORS_PER_BLOCK: u64 = 8;

pub struct Trace {
    pub accesses: Vec<u64>,
    /// Whether each access is a read, where the trace says so.
    pub reads: Option<Vec<bool>>,
}

impl Trace {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim_end).enumerate().filter(|(_, line)| !line.is_empty()).peekable();
        let mut accesses = Vec::new();
        let (_, first) = *lines.peek().ok_or("empty")?;
        if first != VSCSI {
            for (i, line) in lines {
                accesses.push(object(line).ok_or_else(|| format!("line {}: not time, block and size between tabs", i + 1))?);
            }
            return Ok(Self { accesses, reads: None });
        }
        let mut reads = Vec::new();
        for (i, line) in lines.skip(1) {
            let (read, blocks) = request(line).ok_or_else(|| format!("line {}: not a read or write of a vSCSI trace", i + 1))?;
            for block in blocks {
                accesses.push(block);
                reads.push(read);
            }
        }
        Ok(Self { accesses, reads: Some(reads) })
    }
    /// How many distinct blocks are accessed.
    pub fn footprint(&self) -> usize {
        self.accesses.iter().collect::<HashSet<_>>().len()
    }
}

fn object(line: &str) -> Option<u64> {
    let mut fields = line.split('\t');
    let (_time, block, _size) = (fields.next()?, fields.next()?, fields.next()?);
    fields.next().is_none().then_some(())?;
    block.parse().ok()
}

/// Whether a request reads, and the blocks that it touches.
fn request(line: &str) -> Option<(bool, std::ops::Range<u64>)> {
    let fields: Vec<_> = line.split(',').collect();
    let [_version, _time, op, size, lbn] = fields[..] else { return None };
    let read = match u8::from_str_radix(op, 16).ok()? {
        0x08 | 0x28 | 0xa8 | 0x88 => true,
        0x0a | 0x2a | 0xaa | 0x8a => false,
        _ => return None,
    };
    let (size, lbn): (u64, u64) = (size.parse().ok()?, lbn.parse().ok()?);
    let end = lbn.checked_add(size.div_ceil(512))?;
    Some((read, lbn / SECTORS_PER_BLOCK..end.div_ceil(SECTORS_PER_BLOCK)))
}

pub fn check() {
    // Sectors 7 and 8 are of two blocks; 4 KiB from sector 16 are one.
    let t = Trace::parse("version,time,op,size,lbn\n1,5,2a,1024,7\n1,6,28,4096,16\n").expect("a trace");
    assert_eq!((t.accesses.as_slice(), t.reads.as_deref()), (&[0, 1, 2][..], Some(&[false, false, true][..])));
    let t = Trace::parse("1\t0\t81920\n1\t9\t4096\n2\t0\t4096\n").expect("a trace");
    assert_eq!((t.accesses.as_slice(), t.reads.is_none(), t.footprint()), (&[0, 9, 0][..], true, 2));
    assert!(Trace::parse("").is_err() && Trace::parse("1,2,3\n").is_err());
}
