//! Tests of the errors' wire forms: both ways lossless, foreign ones recognised, texts bounded.

use super::*;
use crate::limits::{ERROR_TEXT_BYTES_MAX, RETRY_AFTER_MS_MAX};
use crate::wire;
use tonic::Status;
use tonic_types::StatusExt;

const KINDS: [ErrorKind; 11] = [
    ErrorKind::Invalid,
    ErrorKind::NamespaceUnknown,
    ErrorKind::LeaseUnknown,
    ErrorKind::Busy { retry_after_ms: 0 },
    ErrorKind::Busy { retry_after_ms: 25 },
    ErrorKind::Draining,
    ErrorKind::SessionUnknown,
    ErrorKind::Unavailable,
    ErrorKind::Limit,
    ErrorKind::Internal,
    ErrorKind::PermissionDenied,
];

#[test]
fn errors_survive_both_forms() {
    for kind in KINDS {
        let error = Error::new(kind, "what happened");
        assert_eq!(Error::from_failure(&error.to_failure()), error);
        assert_eq!(Error::from_status(&Status::from(error.clone())), Some(error));
    }
}

#[test]
fn a_status_carries_machine_readable_advice() {
    let status = Status::from(Error::busy(25, "no free slot"));
    assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, "no free slot"));
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("BUSY", "turnkv"));
    assert_eq!(info.metadata["advice"], ErrorKind::Busy { retry_after_ms: 25 }.advice());
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(std::time::Duration::from_millis(25)));
    assert!(Status::from(Error::invalid("x")).get_error_details().retry_info().is_none());
}

#[test]
fn reasons_are_the_wire_names() {
    for kind in KINDS {
        let number = Error::new(kind, "").to_failure().kind;
        let name = wire::ErrorKind::try_from(number).unwrap().as_str_name();
        assert_eq!(name, format!("ERROR_KIND_{}", kind.reason()));
    }
}

#[test]
fn foreign_statuses_are_not_ours() {
    assert_eq!(Error::from_status(&Status::unavailable("connection refused")), None);
    let foreign = tonic_types::ErrorDetails::with_error_info("BUSY", "elsewhere", [("a".into(), "b".into())]);
    assert_eq!(Error::from_status(&Status::with_error_details(tonic::Code::Aborted, "", foreign)), None);
}

#[test]
fn the_words_with_which_a_connection_ended_are_found() {
    let of = |text: &str| {
        let mut status = Status::unknown("h2 protocol error: http2 error");
        status.set_source(std::sync::Arc::new(std::io::Error::other(text.to_owned())));
        Error::parting_words(&status)
    };
    let refused = "detected excessive load generating behavior (b\"this port speaks TLS: use tls://\")";
    assert_eq!(of(refused).as_deref(), Some("this port speaks TLS: use tls://"));
    assert_eq!(of("connection refused"), None);
    assert_eq!(of("not a result of an error (b\"\")"), None);
}

#[test]
fn what_a_newer_or_broken_server_says_is_bounded() {
    let long = "é".repeat(ERROR_TEXT_BYTES_MAX);
    let failure = wire::Failure { kind: 99, message: long.clone(), retry_after_ms: u32::MAX };
    let error = Error::from_failure(&failure);
    assert_eq!((error.kind, error.message.len()), (ErrorKind::Internal, ERROR_TEXT_BYTES_MAX));
    let failure = wire::Failure { kind: wire::ErrorKind::Busy as i32, ..failure };
    assert_eq!(Error::from_failure(&failure).kind, ErrorKind::Busy { retry_after_ms: RETRY_AFTER_MS_MAX });
    assert!(Status::from(Error::invalid(long)).message().len() <= ERROR_TEXT_BYTES_MAX);
}

#[test]
fn bad_input_of_any_sort_is_invalid() {
    let ragged = crate::unpack_hashes(&[0; 5]).unwrap_err();
    assert_eq!(Error::from(ragged).kind, ErrorKind::Invalid);
    let shapeless = crate::Spec::opaque("", 0, 0).check().unwrap_err();
    assert_eq!(Error::from(shapeless).kind, ErrorKind::Invalid);
}

#[test]
fn the_descriptors_name_every_service() {
    let text = String::from_utf8_lossy(crate::DESCRIPTORS);
    for service in ["Pool", "Sessions", "Admin"] {
        assert!(text.contains(service));
    }
}
