//! What a fake agent keeps of its conversations: one file each, below its HOME.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use crate::Outcome;

/// One conversation.
pub(crate) struct Memory {
    directory: PathBuf,
    /// Its id.
    pub(crate) id: String,
    /// What the agent was told in it, oldest first.
    pub(crate) told: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "an agent finds its files by its environment")]
fn directory() -> Outcome<PathBuf> {
    let home = std::env::var_os("HOME").ok_or("HOME is not set")?;
    let directory = PathBuf::from(home).join(".fake_agent");
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

impl Memory {
    /// A new conversation; `None` where there is one of this id.
    pub(crate) fn new(id: &str) -> Outcome<Option<Self>> {
        let memory = Self { directory: directory()?, id: id.into(), told: Vec::new() };
        Ok((!memory.file().exists()).then_some(memory))
    }

    /// A new conversation, whose id is the number of those that were here before: no better than that are some agents.
    pub(crate) fn numbered() -> Outcome<Self> {
        let before = fs::read_dir(directory()?)?.count();
        let memory = Self::new(&format!("fake-{before}"))?.ok_or("a number was given twice")?;
        fs::write(memory.file(), "")?;
        Ok(memory)
    }

    /// An earlier conversation; `None` where there is none. Whoever was told to wander has another id now.
    pub(crate) fn recall(id: &str) -> Outcome<Option<Self>> {
        let mut memory = Self { directory: directory()?, id: id.into(), told: Vec::new() };
        let Ok(text) = fs::read_to_string(memory.file()) else { return Ok(None) };
        memory.told = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        if fs::remove_file(memory.wanders()).is_ok() {
            memory.id = "99999999-9999-4999-8999-999999999999".into();
        }
        Ok(Some(memory))
    }

    /// Writes down what the agent was told.
    pub(crate) fn hear(&mut self, text: &str) -> Outcome<()> {
        let mut file = fs::File::options().create(true).append(true).open(self.file())?;
        writeln!(file, "{}", serde_json::to_string(text)?)?;
        self.told.push(text.into());
        Ok(())
    }

    pub(crate) fn wander(&self) -> Outcome<()> {
        Ok(fs::write(self.wanders(), "")?)
    }

    fn wanders(&self) -> PathBuf {
        self.directory.with_file_name(".fake_agent_wanders")
    }

    fn file(&self) -> PathBuf {
        self.directory.join(format!("{}.jsonl", self.id))
    }
}
