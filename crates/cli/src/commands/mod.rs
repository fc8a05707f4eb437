//! One module a command.

mod aftermath;
mod approvals;
#[cfg(target_os = "linux")]
mod attach;
#[cfg(not(target_os = "linux"))]
mod attach_elsewhere;
#[cfg(target_os = "linux")]
mod bridge;
#[cfg(not(target_os = "linux"))]
mod bridge_elsewhere;
mod budget;
mod cleanup;
mod config;
mod doctor;
mod events;
mod explain;
mod fork;
mod inspect;
mod label;
mod logs;
#[cfg(target_os = "linux")]
mod mcp;
#[cfg(not(target_os = "linux"))]
mod mcp_elsewhere;
mod ps;
mod recover;
mod result;
mod resume;
mod run;
pub mod runner;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(not(target_os = "linux"))]
mod serve_elsewhere;
mod stop;
mod token;
mod transfer;
mod wait;

#[cfg(not(target_os = "linux"))]
use {
    attach_elsewhere as attach, bridge_elsewhere as bridge, mcp_elsewhere as mcp, serve_elsewhere as serve,
};

use clap::CommandFactory as _;

use crate::args::{Cli, Command};
use crate::context::Context;
use crate::failure::Outcome;
use crate::output;

/// Does what the command line says.
pub async fn execute(cli: Cli) -> Outcome<()> {
    if let Command::Completion { shell } = cli.command {
        // Needs no settings: it must work before anything is set up.
        return output::write(|out| {
            clap_complete::generate(shell, &mut Cli::command(), "roomette", out);
            Ok(())
        });
    }
    let context = Context::new(cli.home.as_deref(), cli.store.as_deref(), cli.json)?;
    match cli.command {
        Command::Run(args) => run::execute(&context, *args).await,
        Command::Ps(args) => ps::execute(&context, args).await,
        Command::Inspect(args) => inspect::execute(&context, &args.session).await,
        Command::Logs(args) => logs::execute(&context, args).await,
        Command::Events(args) => events::execute(&context, args).await,
        Command::Attach(args) => attach::execute(&context, *args).await,
        Command::Wait(args) => wait::execute(&context, args).await,
        Command::Stop(args) => stop::stop(&context, args).await,
        Command::Kill(args) => stop::kill(&context, args).await,
        Command::Suspend(args) => stop::suspend(&context, &args.sessions).await,
        Command::Fork(args) => fork::execute(&context, args).await,
        Command::Budget(args) => budget::execute(&context, args.command).await,
        Command::Resume(args) => resume::execute(&context, args).await,
        Command::Send(args) => resume::send(&context, args).await,
        Command::Result(args) => result::execute(&context, &args.session).await,
        Command::Approvals(args) => approvals::execute(&context, args.command).await,
        Command::Label(args) => label::execute(&context, args).await,
        Command::Recover(args) => recover::execute(&context, &args).await,
        Command::Cleanup(args) => cleanup::execute(&context, args).await,
        Command::Export(args) => transfer::export(&context, &args.session).await,
        Command::Import(args) => transfer::import(&context, args).await,
        Command::Serve(args) => serve::execute(&context, &args).await,
        Command::Bridge(args) => bridge::execute(&context, &args).await,
        Command::Mcp => mcp::execute(&context).await,
        Command::Token(args) => token::execute(&context, args.command).await,
        Command::Runner(args) => runner::execute(&context, args).await,
        Command::Doctor => doctor::execute(&context).await,
        Command::Config(args) => config::execute(&context, &args.command),
        Command::Completion { .. } => Ok(()),
    }
}
