//! History: the conversation as a fold over the event log, repaired where a crash tore it.
