//! Figures and bars as people read them.

/// A time of so many nanoseconds, with three digits that matter.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns as f64 {
        ns if ns < 999_500.0 => (ns / 1e3, "us"),
        ns if ns < 999_500_000.0 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if unit == "us" || value >= 99.95 { 0 } else { usize::from(value >= 9.995) ^ 1 };
    format!("{value:.digits$} {unit}")
}

/// A size that is a power of two, in few letters.
pub fn bound(bytes: u64) -> String {
    match bytes {
        b if b < 1 << 10 => format!("{b} B"),
        b if b < 1 << 20 => format!("{} KiB", b >> 10),
        b => format!("{} MiB", b >> 20),
    }
}

/// A bar of at most `width` cells for a share of all, in eighths of a cell; never nothing for something.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    bar.extend((!eighths.is_multiple_of(8)).then(|| EIGHTHS[eighths % 8 - 1]));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short_and_say_their_unit() {
        for (ns, shown) in [
            (0, "0 us"),
            (16_000, "16 us"),
            (999_999, "1.0 ms"),
            (4_096_000, "4.1 ms"),
            (16_384_000, "16 ms"),
            (262_144_000, "262 ms"),
            (67_000_000_000, "67 s"),
        ] {
            assert_eq!(time(ns), shown);
        }
        assert_eq!([512, 4096, 1 << 20].map(bound), ["512 B", "4 KiB", "1 MiB"]);
    }

    #[test]
    fn a_bar_is_as_long_as_its_share_and_little_is_not_nothing() {
        assert_eq!([0.0, 0.5, 1.0, 2.0].map(|share| bar(share, 4)), ["", "██", "████", "████"]);
        assert_eq!([1e-9, 0.3].map(|share| bar(share, 2)), ["▏", "▋"]);
    }
}
