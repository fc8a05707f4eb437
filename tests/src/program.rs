//! The built `roomette`, for tests that run it as a user would.

use std::fs;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};

/// The path of the `roomette` program of this build.
///
/// Cargo does not build another package's program for a test, so `scripts/test` does it before. A program
/// that is missing, or older than a source file it was built from, would prove nothing: then this panics
/// and says how to build it.
///
/// # Panics
///
/// When the program is missing, stale, or cannot be judged.
#[must_use]
pub fn roomette() -> Utf8PathBuf {
    let test = std::env::current_exe()
        .unwrap_or_else(|error| panic!("this test does not know its own path: {error}"));
    let test = Utf8PathBuf::from_path_buf(test)
        .unwrap_or_else(|path| panic!("the path of this test is not UTF-8: {}", path.display()));
    // …/target/debug/deps/it-0123456789abcdef
    let profile =
        test.parent().and_then(Utf8Path::parent).unwrap_or_else(|| panic!("no build directory above {test}"));
    let program = profile.join("roomette");
    if let Err(reason) = check_fresh(&program, &profile.join("roomette.d")) {
        panic!("{reason}; run `cargo build --package roomette`, or `scripts/test`, which does it");
    }
    program
}

/// Compares the program with every file that cargo says it was built from.
fn check_fresh(program: &Utf8Path, listing: &Utf8Path) -> Result<(), String> {
    let built = modified(program)?;
    let listed = fs::read_to_string(listing).map_err(|error| format!("cannot read {listing}: {error}"))?;
    let sources = sources_of(&listed);
    if sources.is_empty() {
        return Err(format!("{listing} names no source file"));
    }
    for source in sources {
        if modified(Utf8Path::new(&source))? > built {
            return Err(format!("{program} is older than {source}"));
        }
    }
    Ok(())
}

fn modified(path: &Utf8Path) -> Result<SystemTime, String> {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .map_err(|error| format!("cannot stat {path}: {error}"))
}

/// The files right of the colon of a make-style listing, where a space inside a name is escaped.
fn sources_of(listing: &str) -> Vec<String> {
    let Some((_, sources)) = listing.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    let marked = sources.replace("\\ ", "\0");
    marked.split_whitespace().map(|source| source.replace('\0', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_names_its_sources() {
        let listing = "/target/debug/roomette: /src/main.rs /src/with\\ space.rs\n\n/src/main.rs:\n";
        assert_eq!(sources_of(listing), ["/src/main.rs", "/src/with space.rs"]);
        assert_eq!(sources_of(""), [] as [String; 0]);
    }

    #[test]
    fn a_program_older_than_its_source_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(directory.path()).unwrap();
        let [program, source, listing] = ["roomette", "main.rs", "roomette.d"].map(|name| root.join(name));
        for path in [&program, &source] {
            fs::write(path, "").unwrap();
        }
        fs::write(&listing, format!("{program}: {source}\n")).unwrap();
        let set = |path: &Utf8Path, seconds| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };

        set(&program, 100);
        set(&source, 100);
        assert_eq!(check_fresh(&program, &listing), Ok(()));
        set(&source, 101);
        assert!(check_fresh(&program, &listing).unwrap_err().contains("is older than"));
        fs::remove_file(&program).unwrap();
        assert!(check_fresh(&program, &listing).unwrap_err().contains("cannot stat"));
    }
}
