//! Sizes as people write them: `512M`, `16G`, `1.5G`, `65536`, and `none` for no limit, which is 0.

/// What each letter stands for. Powers of 1024, as memory is counted.
const UNITS: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

/// The size in bytes; 0 for `none`.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write 512M, 16G, 1.5G or a number of bytes, or none");
    if text == "none" {
        return Ok(0);
    }
    let is_unit = |rest: &&str| rest.ends_with(|last: char| last.is_ascii_alphabetic());
    let bare = text.strip_suffix("iB").filter(is_unit).or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let unit = bare.chars().next_back().and_then(|last| {
        UNITS.iter().find(|(letter, _)| last.eq_ignore_ascii_case(letter)).map(|(_, unit)| *unit)
    });
    let (number, unit) = match unit {
        Some(unit) => (&bare[..bare.len() - 1], unit),
        None => (bare, 1),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole)
        || (unit == 1 && number.contains('.'))
        || (number.contains('.') && (!digits(part) || part.len() > 6))
    {
        return Err(wrong());
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit)).ok_or_else(wrong)?;
    let scale = 10_u64.pow(u32::try_from(part.len()).unwrap_or_default());
    let part = part.parse::<u64>().unwrap_or_default() * unit / scale;
    match whole.checked_add(part) {
        Some(0) | None => Err(wrong()),
        Some(bytes) => Ok(bytes),
    }
}

/// The size in the largest unit in which it is a whole number.
pub fn show(bytes: u64) -> String {
    let fits = UNITS.iter().rev().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    fits.map_or_else(|| bytes.to_string(), |(letter, unit)| format!("{}{letter}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in [
            ("1", 1),
            ("64K", 65_536),
            ("512m", 512 << 20),
            ("16G", 16 << 30),
            ("16GiB", 16 << 30),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("none", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "0", "0K", "G", "-1", "1.G", ".5G", "1e3", "1 G", "99999999999T", "16X", "16iB", "1.5", "é"]
        {
            let refused = parse(text);
            assert!(refused.is_err(), "{text}: {refused:?}");
        }
        assert_eq!(show(16 << 30), "16G");
        assert_eq!(show(65_537), "65537");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(bytes in 1_u64..) {
            prop_assert_eq!(parse(&show(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC*|[0-9.KMGiB]{0,12}") {
            let _taken = parse(&text);
        }
    }
}
