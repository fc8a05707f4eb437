//! Amounts of money as people write them: US dollars with up to six decimals, kept in millionths.

/// How many millionths a dollar has.
const MICROS: u64 = 1_000_000;
/// How many decimals that is.
const DECIMALS: usize = 6;

/// The millionths of a dollar that a text such as `2.50` stands for.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no amount in US dollars such as 2.50, with at most {DECIMALS} decimals");
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if !digits(whole) || !digits(decimals) || decimals.len() > DECIMALS {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let decimals: u64 = format!("{decimals:0<DECIMALS$}").parse().map_err(|_| wrong())?;
    whole.checked_mul(MICROS).and_then(|micros| micros.checked_add(decimals)).ok_or_else(wrong)
}

/// An amount for people: `$2.50`, `$0.000004`.
pub fn show(micros: u64) -> String {
    let decimals = format!("{:0DECIMALS$}", micros % MICROS);
    let kept = decimals.trim_end_matches('0').len().max(2);
    format!("${}.{}", micros / MICROS, &decimals[..kept])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (text, micros, shown) in [
            ("2.50", 2_500_000, "$2.50"),
            ("0", 0, "$0.00"),
            ("0.000004", 4, "$0.000004"),
            ("12", 12_000_000, "$12.00"),
            ("1.125", 1_125_000, "$1.125"),
        ] {
            assert_eq!(parse(text), Ok(micros));
            assert_eq!(show(micros), shown);
        }
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "1e3",
            "0.0000001",
            "99999999999999999999",
            "18446744073710",
            "2,50",
            "$2",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
