//! Writing to the person and to scripts: stdout is data, stderr is for people.

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{Table, presets};
use serde::Serialize;
use unicode_width::UnicodeWidthChar as _;

use crate::failure::{Failure, Kind, Outcome};
use crate::system;

/// Writes a line of data.
pub fn line(text: &str) -> Outcome<()> {
    write(|out| writeln!(out, "{text}"))
}

/// Writes a value as one line of JSON.
pub fn json<T: Serialize>(value: &T) -> Outcome<()> {
    write(|out| {
        serde_json::to_writer(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Writes data as they are.
pub fn write(data: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>) -> Outcome<()> {
    let mut out = io::stdout().lock();
    data(&mut out).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // Whoever reads has seen enough.
            closed()
        } else {
            Failure::caused(Kind::Error, "stdout cannot be written", &error)
        }
    })
}

/// The reader of stdout has gone away.
pub fn closed() -> Failure {
    Failure::new(Kind::Error, CLOSED)
}

/// The message of [`closed`], by which it is told apart: it is not reported.
pub const CLOSED: &str = "stdout is closed";

/// Tells a person something. When stderr is gone there is nobody to tell.
pub fn say(text: &str) {
    let _gone = writeln!(io::stderr().lock(), "{text}");
}

/// The same with lines that are whole already.
pub fn tell(lines: &str) {
    let _gone = io::stderr().lock().write_all(lines.as_bytes());
}

/// Whether a person watches stderr on a terminal.
pub fn is_live() -> bool {
    io::stderr().is_terminal()
}

/// Columns without lines between them.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().copied());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Writes a table without the blanks at the ends of its lines, on a terminal one row a line.
pub fn print(table: &Table) -> Outcome<()> {
    let width = io::stdout().is_terminal().then(system::columns).flatten();
    let cut = |line: String| match width {
        Some(width) => harmless(line.trim_end(), width),
        None => line.trim_end().to_owned(),
    };
    let text: Vec<_> = table.lines().map(cut).collect();
    line(&text.join("\n"))
}

/// One line of foreign text, made harmless for a terminal and cut to so many columns: what would steer the terminal,
/// or turn the direction of writing, is shown and not obeyed.
pub fn harmless(text: &str, columns: usize) -> String {
    let shown = text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c });
    let mut line = String::new();
    let mut used = 0;
    for c in shown {
        let width = c.width().unwrap_or_default();
        if used + width > columns {
            while used + 1 > columns {
                let Some(last) = line.pop() else { break };
                used -= last.width().unwrap_or_default();
            }
            line.push('…');
            break;
        }
        used += width;
        line.push(c);
    }
    line
}

fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(harmless("\x1b[31mred\x07", 40), "\u{fffd}[31mred\u{fffd}");
        assert_eq!(harmless("abcdef", 4), "abc…");
        assert_eq!(harmless("abcd", 4), "abcd");
        assert_eq!(harmless("日本語", 6), "日本語");
        assert_eq!(harmless("日本語", 5), "日本…");
        assert_eq!(harmless("a\u{202e}b", 9), "a\u{fffd}b");
    }
}
