//! What a policy may say.

use proptest::prelude::*;

use super::*;

fn reason_for(policy: &Policy) -> PathReason {
    match policy.check() {
        Err(PolicyError::Path { reason, .. }) => reason,
        other => panic!("not refused for a path: {other:?}"),
    }
}

#[test]
fn roots_that_cannot_be_meant_are_refused_with_the_reason() {
    for (root, expected) in [
        ("", PathReason::Empty),
        ("relative", PathReason::Relative),
        ("./x", PathReason::Relative),
        ("/", PathReason::Everything),
        ("/srv/../etc", PathReason::NotPlain),
        ("/srv/./x", PathReason::NotPlain),
        ("/srv//x", PathReason::NotPlain),
        ("/srv/x/", PathReason::NotPlain),
        ("/srv/new\nline", PathReason::ControlCharacter),
        ("/srv/nul\0", PathReason::ControlCharacter),
        ("/etc", PathReason::OfSystem),
        ("/usr", PathReason::OfSystem),
        ("/proc/1", PathReason::MadeAnew),
        ("/dev", PathReason::MadeAnew),
    ] {
        assert_eq!(reason_for(&Policy::new("/").allow_write(root)), expected, "{root:?}");
        assert_eq!(reason_for(&Policy::new("/").allow_read(root)), expected, "{root:?}");
    }
    let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
    assert_eq!(reason_for(&Policy::new("/").allow_write(long)), PathReason::TooLong);
}

#[test]
fn what_is_protected_and_where_it_starts_lie_in_roots() {
    let policy = Policy::new("/srv/x/deep").allow_write("/srv/x");
    policy.check().unwrap();
    assert_eq!(reason_for(&policy.clone().protect(["/srv/y".into()])), PathReason::NotInReadWriteRoot);
    assert_eq!(reason_for(&policy.protect(["/srv/x".into()])), PathReason::NotInReadWriteRoot);
    assert_eq!(reason_for(&Policy::new("/srv/xy").allow_write("/srv/x")), PathReason::NotInRoot);
    assert_eq!(reason_for(&Policy::new("/").allow_device("/etc/passwd")), PathReason::NotADevicePath);
}

#[test]
fn limits_and_variables_that_nothing_can_live_with_are_refused() {
    let limits = Limits { processes: Some(1), ..Limits::default() };
    let error = Policy::new("/").with_limits(limits).check().unwrap_err();
    assert_eq!(error.to_string(), "limits: processes is 1, and less than 8 lets no program start");
    for name in ["", "A=B", "A\0"] {
        let error = Policy::new("/").with_variable(name, "").check().unwrap_err();
        assert_eq!(error, PolicyError::Variable { name: name.to_owned() });
    }
    Policy::new("/").with_variable("A", "=\n").check().unwrap();
}

#[test]
fn no_more_paths_than_can_be_passed_on() {
    let many = (0..=PATHS_MAX).fold(Policy::new("/"), |policy, n| policy.allow_read(format!("/srv/{n}")));
    assert!(matches!(many.check(), Err(PolicyError::TooMany { field: Field::ReadOnly, .. })));
}

proptest! {
    #[test]
    fn any_text_as_a_root_is_taken_or_refused(root in "\\PC*|(/|\\.|a|\n){0,12}") {
        let policy = Policy::new("/").allow_write(root.as_str());
        if policy.check().is_ok() {
            prop_assert!(root.starts_with('/') && root.len() > 1 && !root.contains("/../"));
        }
    }
}
