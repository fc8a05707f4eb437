//! How a path is measured beside its floor, and the table that comes of it.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often floor and path are measured in turn.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;
/// By how much `--quick` divides the number of operations.
const QUICK_DIVISOR: usize = 5;

/// What a bench comes to.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Ends a bench whose result is wrong: a broken path must not look fast.
macro_rules! ensure {
    ($holds:expr, $($message:tt)*) => {
        if !$holds {
            return Err(format!($($message)*).into());
        }
    };
}
pub(crate) use ensure;

/// The run of all benches.
pub(crate) struct Bench {
    quick: bool,
    rows: Vec<[String; 5]>,
    notes: Vec<String>,
}

/// Seconds that one operation takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) floor: f64,
    pub(crate) ours: f64,
}

/// How figures are shown, and which way the ratio goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shown {
    /// Operations a second: more is better.
    Rate,
    /// Time of one operation: less is better.
    Time,
    /// Bytes of one thing, in the place of seconds: fewer is better.
    Bytes,
}

/// What a path is to reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// At least so many times the floor's rate.
    AtLeast(f64),
    /// At most so many times the floor's time.
    AtMost(f64),
    /// At most so many milliseconds.
    Milliseconds(f64),
    /// At most so many microseconds.
    Microseconds(f64),
    /// At most so many nanoseconds.
    Nanoseconds(f64),
    /// At most so many bytes.
    Bytes(f64),
    /// At least so many a second.
    PerSecond(f64),
    /// Shown for comparison only.
    None,
}

/// The path of a row, and what its floor is.
pub(crate) struct Named<'a> {
    pub(crate) path: &'a str,
    pub(crate) floor: &'a str,
}

impl Bench {
    pub(crate) fn new(quick: bool) -> Self {
        Self { quick, rows: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    pub(crate) fn rounds(&self) -> usize {
        if self.quick { ROUNDS_QUICK } else { ROUNDS }
    }

    /// This many operations, or fewer when it has to be quick.
    pub(crate) fn sized(&self, operations: usize) -> usize {
        if self.quick { operations.div_ceil(QUICK_DIVISOR) } else { operations }
    }

    /// Measures floor and path in turn, whichever comes first changing, and adds the row of their medians.
    pub(crate) async fn compare(
        &mut self,
        named: Named<'_>,
        shown: Shown,
        target: Target,
        mut floor: impl AsyncFnMut(usize) -> Outcome<f64>,
        mut ours: impl AsyncFnMut(usize) -> Outcome<f64>,
    ) -> Outcome<Pair> {
        let (mut floors, mut own) = (Vec::new(), Vec::new());
        for round in 0..self.rounds() {
            if round % 2 == 0 {
                floors.push(floor(round).await?);
                own.push(ours(round).await?);
            } else {
                own.push(ours(round).await?);
                floors.push(floor(round).await?);
            }
        }
        let pair = Pair { floor: median(floors), ours: median(own) };
        self.row(&named, shown, target, pair);
        Ok(pair)
    }

    /// Adds a row of figures that were measured elsewhere.
    pub(crate) fn row(&mut self, named: &Named<'_>, shown: Shown, target: Target, pair: Pair) {
        let ratio = match shown {
            Shown::Rate => pair.floor / pair.ours,
            Shown::Time | Shown::Bytes => pair.ours / pair.floor,
        };
        let row = [
            named.path.to_owned(),
            format!("{}: {}", named.floor, figure(shown, pair.floor)),
            figure(shown, pair.ours),
            format!("{ratio:.2}"),
            target.judged(ratio, pair.ours),
        ];
        report_line(&format!("  {}", row.join(" | ")));
        self.rows.push(row);
    }

    /// Adds a line below the table.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.into());
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> Outcome {
        let heading = ["path", "floor", "ours", "ratio", "target"].map(String::from);
        let rows: Vec<_> = std::iter::once(&heading).chain(&self.rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..heading.len()).map(width).collect();
        let mut text = String::new();
        for (index, row) in rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                write!(text, "| {cell:width$} ")?;
            }
            text.push_str("|\n");
            if index == 0 {
                widths.iter().try_for_each(|width| write!(text, "|{}", "-".repeat(width + 2)))?;
                text.push_str("|\n");
            }
        }
        for note in &self.notes {
            writeln!(text, "{note}")?;
        }
        Ok(std::io::stdout().write_all(text.as_bytes())?)
    }
}

impl Target {
    fn judged(self, ratio: f64, ours: f64) -> String {
        let (met, text) = match self {
            Self::AtLeast(least) => (ratio >= least, format!("≥ {least}")),
            Self::AtMost(most) => (ratio <= most, format!("≤ {most}")),
            Self::Milliseconds(most) => (ours * 1e3 <= most, format!("≤ {most} ms")),
            Self::Microseconds(most) => (ours * 1e6 <= most, format!("≤ {most} µs")),
            Self::Nanoseconds(most) => (ours * 1e9 <= most, format!("≤ {most} ns")),
            Self::Bytes(most) => (ours <= most, format!("≤ {most} bytes")),
            Self::PerSecond(least) => (1.0 / ours >= least, format!("≥ {least}/s")),
            Self::None => return "–".into(),
        };
        format!("{text} {}", if met { "met" } else { "MISSED" })
    }
}

/// Seconds that one of so many operations takes.
pub(crate) fn each(elapsed: Duration, operations: usize) -> Outcome<f64> {
    ensure!(operations > 0, "nothing was measured");
    Ok(elapsed.as_secs_f64() / f64::from(u32::try_from(operations)?))
}

/// Every caller works through its own items, all callers at once. Seconds an item.
pub(crate) async fn together<T, F, Fut>(callers: Vec<Vec<T>>, work: F) -> Outcome<f64>
where
    T: Send + 'static,
    F: Fn(T) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    let items = callers.iter().map(Vec::len).sum();
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for own in callers {
        let work = work.clone();
        tasks.spawn(async move {
            for item in own {
                work(item).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    each(begun.elapsed(), items)
}

/// Seconds that one of so many calls takes.
pub(crate) fn timed(calls: usize, mut call: impl FnMut(usize) -> Outcome) -> Outcome<f64> {
    let begun = Instant::now();
    for index in 0..calls {
        call(index)?;
    }
    each(begun.elapsed(), calls)
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn figure(shown: Shown, seconds: f64) -> String {
    match shown {
        Shown::Rate => format!("{:.0}/s", 1.0 / seconds),
        Shown::Bytes => format!("{seconds:.0} bytes"),
        Shown::Time if seconds < 1e-7 => format!("{:.1} ns", seconds * 1e9),
        Shown::Time if seconds < 1e-4 => format!("{:.2} µs", seconds * 1e6),
        Shown::Time => format!("{:.2} ms", seconds * 1e3),
    }
}

/// Says on stderr how far the run has come.
pub(crate) fn report_line(text: &str) {
    // Nobody listens, nothing is lost.
    let _written = writeln!(std::io::stderr(), "{text}");
}
