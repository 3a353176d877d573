//! The journal catalog (`journalctl -x`): the log messages about something that begins, ends or needs a person. Each
//! has a permanent id and an explanation.
//!
//! The message of an entry is constant, and the logger finds the entry by its message. So code that logs names no id.
//! The files `systemd/stemma-agent.catalog` and `systemd/stemma-controller.catalog` are generated from this table, for
//! `/usr/lib/systemd/catalog`. A machine may have both packages, so no entry is in both files.

use std::fmt::Write as _;

use log::kv::{Error, Key, Source, Value, VisitSource};
use log::{Log, Metadata, Record};

use super::lines::is_empty_value;

/// The catalog entry of one log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The program that logs the message.
    pub program: &'static str,
    /// The message of the log line. It is constant, because the logger finds the entry by it.
    pub message: &'static str,
    /// The `MESSAGE_ID`: 32 hexadecimal digits that never change.
    pub id: &'static str,
    /// The subject, in one line. `journalctl -x` replaces `@NAME@` by the value of the log field `name`.
    pub subject: &'static str,
    /// The explanation of the message, and the advice for the operator.
    pub text: &'static str,
}

macro_rules! catalog {
    ($($program:literal: $message:literal $id:literal $subject:literal $text:literal;)*) => {
        /// All entries of the journal catalog.
        pub const CATALOG: &[CatalogEntry] =
            &[$(CatalogEntry { program: $program, message: $message, id: $id, subject: $subject, text: $text },)*];
    };
}

catalog! {
    "stemma-agent": "agent started" "f3a6c03ee5e044a89f943e3f7f411a50"
        "The agent has started"
        "It applies the desired state that the host holds, and checks in with its controllers.";
    "stemma-agent": "desired state accepted" "6335fa783e94454aa847f2dbdf9328f7"
        "This host accepted the desired state of revision @REVISION@"
        "The state was verified: signature, order and digests. `stemma-agent status` shows the result.";
    "stemma-agent": "the tasks of this host have been applied" "bfa67355d503462a9ec0028bd401af3a"
        "All tasks of this host have succeeded"
        "stemma-applied.target is reached.";
    "stemma-agent": "no controller serves this host" "3c76473453604513b2d502d65a3dfa39"
        "No controller serves this host"
        "The host continues with the desired state that it holds, and retries with growing pauses. The field ERROR contains the reason: check the network, the controller, and this host's clock.";
    "stemma-agent": "what a controller sent is refused" "756b169710ed44e0a37b81715272b6f0"
        "A desired state was refused"
        "Its signature, order or digests are invalid, and the field ERROR contains the reason. Nothing was changed. The cause can be a controller that was restored from an old backup, or an attacker between controller and host.";
    "stemma-agent": "another agent with this host's certificate has checked in" "39f7db69141d4652808f8224073fa2cd"
        "Another agent uses this host's certificate"
        "A cloned disk has the same certificate. Delete the node on the controller and join each host with a token of its own.";
    "stemma-agent": "the agent's own state cannot be kept; nothing is begun before it can" "c786c85939b5431fbe71a89e03180574"
        "The agent's state directory cannot be written"
        "A full or read-only disk: make room below /var/lib/stemma-agent. Labels and tasks stay as they are until then.";
    "stemma-agent": "labels cannot be written on this host; it is tried again" "68087c720f094740f8220fec2ae3eb4a"
        "This host cannot write its labels"
        "The field ERROR contains the path: make room there, or move away the object that is in the place of the file. Tasks continue to run. The agent retries within 30 seconds.";
    "stemma-agent": "certificate renewed" "81f122c108b24ac18d8935e6f1c2968c"
        "This host's certificate was renewed"
        "No action is needed.";
    "stemma-controller": "serving agents" "b894ff1a6f274d1986f7d3a259446d77"
        "The controller serves agents at @ADDRESS@"
        "No action is needed.";
    "stemma-controller": "stopping" "35d585b32f55466e8108f4589deed400"
        "The controller stops"
        "It completes the requests in progress first. Hosts continue with the desired state that they hold.";
    "stemma-controller": "node joined" "a28498dc7b784ef690abb7a5b0ef68fe"
        "Node @NAME@ joined with token @TOKEN@"
        "Its certificate is valid for 24 hours, and the agent renews it.";
    "stemma-controller": "node is silent" "10212f689c6a420dba926e6eeb812435"
        "Node @NAME@ (@NODE@) is silent"
        "It has not checked in for longer than silent_after of its group. Tasks on other hosts that wait for this node continue to wait.";
    "stemma-controller": "node is back" "2c6fb0b741244263b69aed11e52ea279"
        "Node @NAME@ (@NODE@) is back"
        "No action is needed.";
    "stemma-controller": "store write failed, the store is read-only until it is reopened" "2ba5b59cfb534c25954b581a309d55a2"
        "The store cannot be written any more"
        "The controller stops, so that systemd restarts it. Every confirmed write is stored. The result of the last write is unknown. Check the disk of the data directory.";
    "stemma-controller": "a full resolve found something to do" "597d96b257c2400cabd2fd4ea8e36aa0"
        "The desired states of @NODES@ nodes were outdated"
        "An earlier change had not reached these nodes, and has reached them now. Please report this with the surrounding log.";
    "stemma-controller": "certificate renewed after it had expired" "d1436d84c052425cb4104f489e47e28b"
        "Node @NAME@ (@NODE@) renewed an expired certificate"
        "Its controllers or its network were unavailable for a day or more, or somebody started an old copy of its disk: find out which.";
}

/// Returns the catalog entry of a log message.
pub fn catalog_entry(message: &str) -> Option<&'static CatalogEntry> {
    CATALOG.iter().find(|entry| entry.message == message)
}

/// Returns the text of `systemd/PROGRAM.catalog`, in the format that `journalctl --update-catalog` reads.
pub fn catalog_file(program: &str) -> String {
    let mut file = format!("# Explains lines of {program}'s log (journalctl -x). Written from shared/wire/src/log/catalog.rs.\n");
    for CatalogEntry { id, subject, text, .. } in CATALOG.iter().filter(|entry| entry.program == program) {
        let _infallible = write!(file, "\n-- {id}\nSubject: {subject}\nDefined-By: Stemma\n\n{text}\n");
    }
    file
}

/// A logger that passes each record on to an inner logger. It adds the `message_id` if the message is in the catalog,
/// and omits fields without a value.
pub(super) struct CatalogLogger<L>(pub(super) L);

impl<L: Log> Log for CatalogLogger<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    /// Passes the record on without the fields that have no value. If its message is in the catalog, adds the
    /// `message_id`. Only a constant message (`as_str`) can be in the catalog.
    fn log(&self, record: &Record<'_>) {
        let id = record.args().as_str().and_then(catalog_entry).map(|entry| entry.id);
        let fields = CatalogFields { fields: record.key_values(), id };
        self.0.log(&record.to_builder().key_values(&fields).build());
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// The fields of a record, with the message id of its catalog entry, if it has one.
struct CatalogFields<'a> {
    fields: &'a dyn Source,
    id: Option<&'static str>,
}

impl Source for CatalogFields<'_> {
    /// Visits the fields that have a value, then `message_id`.
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), Error> {
        self.fields.visit(&mut NonEmptyFields(visitor))?;
        self.id.map_or(Ok(()), |id| visitor.visit_pair(Key::from_str("message_id"), Value::from(id)))
    }
}

/// A visitor that passes on only the fields that have a value.
struct NonEmptyFields<'a, 'kvs>(&'a mut dyn VisitSource<'kvs>);

impl<'kvs> VisitSource<'kvs> for NonEmptyFields<'_, 'kvs> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        if is_empty_value(&value) { Ok(()) } else { self.0.visit_pair(key, value) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;

    /// A logger that stores each record as one text: the message, then the fields in their order.
    struct CapturingLogger<'a>(&'a Mutex<Vec<String>>);

    impl Log for CapturingLogger<'_> {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            struct FieldText(String);
            impl<'kvs> VisitSource<'kvs> for FieldText {
                fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
                    let _infallible = write!(self.0, " {key}={value}");
                    Ok(())
                }
            }
            let mut fields = FieldText(record.args().to_string());
            record.key_values().visit(&mut fields).expect("nothing fails here");
            self.0.lock().expect("no thread panicked").push(fields.0);
        }

        fn flush(&self) {}
    }

    #[test]
    fn catalog_logger_appends_message_id_when_line_is_catalogued() {
        let lines = Mutex::default();
        let logger = CatalogLogger(CapturingLogger(&lines));
        let fields = [("node", "n1")];
        for message in [format_args!("node is back"), format_args!("node is hungry")] {
            logger.log(&Record::builder().args(message).key_values(&fields).build());
        }
        let lines = lines.into_inner().expect("no thread panicked");
        assert_eq!(lines, ["node is back node=n1 message_id=2c6fb0b741244263b69aed11e52ea279", "node is hungry node=n1"]);
    }

    #[test]
    fn y09_catalog_logger_drops_field_when_value_is_null() {
        let lines = Mutex::default();
        let fields = [("node", Some("n1")), ("name", None)];
        CatalogLogger(CapturingLogger(&lines))
            .log(&Record::builder().args(format_args!("node joins")).key_values(&fields).build());
        assert_eq!(lines.into_inner().expect("no thread panicked"), ["node joins node=n1"]);
    }

    #[test]
    fn catalog_has_unique_valid_message_ids() {
        let ids: BTreeSet<_> = CATALOG.iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), CATALOG.len());
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))));
    }

    #[test]
    fn catalog_file_matches_committed_file() {
        let programs: BTreeSet<_> = CATALOG.iter().map(|entry| entry.program).collect();
        assert_eq!(programs, BTreeSet::from(["stemma-agent", "stemma-controller"]));
        for program in programs {
            let path = format!("{}/../../systemd/{program}.catalog", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("STEMMA_WRITE_DOCS").is_some() {
                std::fs::write(&path, catalog_file(program)).expect("the units' directory");
            }
            let committed_text = std::fs::read_to_string(&path).expect(&path);
            let is_current = committed_text == catalog_file(program);
            assert!(is_current, "{path} is out of date: run STEMMA_WRITE_DOCS=1 cargo test -p stemma-wire catalog");
        }
    }
}
