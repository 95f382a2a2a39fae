//! Sizes as people write and read them.

/// A size such as `4096`, `64KiB`, `1.5 GiB` or `10MB`, in bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("{text:?} is no size: give a number and KiB, MiB, GiB or TiB")),
    };
    let whole = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    let bytes = whole.or_else(|| {
        let bytes = number.parse::<f64>().ok()? * factor as f64;
        (bytes < 2f64.powi(63) && bytes.fract() == 0.0).then_some(bytes as u64)
    });
    bytes.ok_or_else(|| format!("{text:?} is no size in whole bytes: give a number and KiB, MiB, GiB or TiB"))
}

/// A size in the largest unit that leaves something before the point, with one digit after it unless it is whole.
pub fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = (bytes.max(1).ilog2() / 10) as usize;
    let unit = 1u64 << (10 * step);
    match bytes % unit {
        0 => format!("{} {}", bytes / unit, units[step]),
        _ => format!("{:.1} {}", bytes as f64 / unit as f64, units[step]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1.5 GiB", 3 << 29), ("10MB", 10_000_000), ("1t", 1 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "1XB", "-1", "1.3", "99999999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for (bytes, text) in
            [(0, "0 B"), (512, "512 B"), (65536, "64 KiB"), (1536, "1.5 KiB"), (3 << 29, "1.5 GiB"), (u64::MAX, "16.0 EiB")]
        {
            assert_eq!(show(bytes), text);
        }
    }
}
