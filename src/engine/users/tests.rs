#![allow(clippy::unwrap_used)]

use super::*;
use crate::commands;
use crate::engine::users::selector::Denial;

fn user(rules: &str) -> User {
    changed(&Users::new(commands::table(), false), "bob", rules).unwrap()
}

fn changed(users: &Users, name: &str, rules: &str) -> Result<User, String> {
    let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
    users.changed(name.as_bytes(), &rules).map_err(|error| String::from_utf8(error).unwrap())
}

fn shown(user: &User) -> String {
    String::from_utf8(user.describe()).unwrap()
}

fn check(user: &User, request: &str) -> Result<(), Denial> {
    let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
    user.check(commands::table().named(&args).unwrap(), &args)
}

#[test]
fn rules_are_shown_as_they_may_be_given_again() {
    for (given, kept) in [
        ("on", "on sanitize-payload resetchannels -@all"),
        ("on nopass allkeys allchannels allcommands", "on nopass sanitize-payload ~* &* +@all"),
        ("skip-sanitize-payload ~a ~b ~a", "off skip-sanitize-payload ~a ~b resetchannels -@all"),
        ("%R~a %w~b %rw~c %R~d %W~d", "off sanitize-payload %R~a %W~b ~c ~d resetchannels -@all"),
        ("&a &b &a", "off sanitize-payload resetchannels &a &b -@all"),
        ("+GET +set -get +@Read", "off sanitize-payload resetchannels -@all +set -get +@read"),
        ("+config|get +config", "off sanitize-payload resetchannels -@all +config"),
        ("+config -config|set +config|get", "off sanitize-payload resetchannels -@all +config -config|set +config|get"),
        ("+@all -@dangerous +info", "off sanitize-payload resetchannels +@all -@dangerous +info"),
        ("+SELECT|0 +select|1", "off sanitize-payload resetchannels -@all +select|0 +select|1"),
        ("+select|0 +select", "off sanitize-payload resetchannels -@all +select"),
        (
            "(~x +get) (+@all &c)",
            "off sanitize-payload resetchannels -@all (~x resetchannels -@all +get) (resetchannels &c +@all)",
        ),
        ("(~x +get) clearselectors", "off sanitize-payload resetchannels -@all"),
        ("on nopass +@all ~* &* (+get) reset", "off sanitize-payload resetchannels -@all"),
    ] {
        let user = user(given);
        assert_eq!(shown(&user), kept, "{given}");
        let again = changed(&Users::new(commands::table(), false), "bob", kept).unwrap();
        assert_eq!(again, user, "{kept}");
    }
}

#[test]
fn a_bad_rule_is_refused_with_its_reason_and_changes_nothing() {
    let users = Users::new(commands::table(), false);
    let hash = "#".to_owned() + &"A".repeat(64);
    for (rule, reason) in [
        ("+nosuch", "Unknown command or category name in ACL"),
        ("-nosuch", "Unknown command or category name in ACL"),
        ("+@nosuch", "Unknown command or category name in ACL"),
        ("+config|nosuch", "Unknown command or category name in ACL"),
        ("-select|0", "Unknown command or category name in ACL"),
        ("+config|get|x", "Allowing first-arg of a subcommand is not supported"),
        ("+get|", "Syntax error"),
        ("nosuch", "Syntax error"),
        ("%~a", "Syntax error"),
        ("%RR~a", "Syntax error"),
        ("%X~a", "Syntax error"),
        ("%", "Syntax error"),
        ("~a\tb", "Syntax error"),
        ("&a\nb", "Syntax error"),
        ("(nosuch)", "Syntax error"),
        ("#abc", "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"),
        (&hash, "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"),
        ("<pw", "The password you are trying to remove from the user does not exist"),
    ] {
        let error = changed(&users, "bob", rule).unwrap_err();
        assert_eq!(error, format!("Error in ACL SETUSER modifier '{rule}': {reason}"));
    }
    assert!(changed(&users, "bob", "~* ~a").unwrap_err().contains("'allkeys' flag) is not valid"));
    assert!(changed(&users, "bob", "~* %X~a").unwrap_err().contains("'allkeys' flag) is not valid"));
    assert!(changed(&users, "bob", "&* &a").unwrap_err().contains("'allchannels' flag) is not valid"));
    assert_eq!(changed(&users, "bob", "on (~a +get").unwrap_err(), "Unmatched parenthesis in acl selector starting at '(~a'.");
    users.check_invariants();
}

#[test]
fn passwords_are_hashes_and_may_be_several() {
    let one = user("on >one >two >one");
    assert_eq!(one.passwords().len(), 2);
    assert!(one.admits(b"one") && one.admits(b"two") && !one.admits(b"three"));
    let hash = one.passwords().next().unwrap();
    assert_eq!(hash, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
    assert!(user(&format!("on #{hash}")).admits(b"one"));
    assert!(!user("on >one >two <one").admits(b"one"));
    assert!(!user(&format!("on >one >two !{hash}")).admits(b"one"));
    assert!(!user("off >one").admits(b"one"));
    assert!(user("on >one nopass").admits(b"anything"));
    assert!(!user("on nopass >one").admits(b"anything"));
    assert!(!user("on >one resetpass").admits(b"one"));
    assert!(!user("on nopass resetpass").admits(b""));
}

#[test]
fn commands_are_allowed_by_name_category_and_first_argument() {
    let denied = Err(Denial::Command);
    let reader = user("allkeys +@read -strlen +config|get +select|0");
    for (request, allowed) in [
        ("get k", Ok(())),
        ("strlen k", denied),
        ("set k v", denied),
        ("config get *", Ok(())),
        ("config set a b", denied),
        ("select 0", Ok(())),
        ("SELECT 0", Ok(())),
        ("select 1", denied),
        ("ping", denied),
        ("auth x", Ok(())),
        ("hello", Ok(())),
        ("reset", Ok(())),
    ] {
        assert_eq!(check(&reader, request), allowed, "{request}");
    }
    let without = user("allkeys +@all -config");
    assert_eq!(check(&without, "config get *"), denied);
    assert_eq!(check(&without, "client list"), Ok(()));
    assert!(!without.is_unrestricted());
    assert!(user("~* &* +@all -get +get").is_unrestricted());
    assert!(!user("~* +@all").is_unrestricted());
}

#[test]
fn keys_are_allowed_by_pattern_and_by_what_is_done_to_them() {
    let user = user("+@all %R~r* %W~w* ~a*");
    for (request, allowed) in [
        ("get r1", Ok(())),
        ("get w1", Err(Denial::Key(1))),
        ("get other", Err(Denial::Key(1))),
        ("set w1 v", Ok(())),
        ("set w1 v get", Err(Denial::Key(1))),
        ("set r1 v", Err(Denial::Key(1))),
        ("exists w1 r1", Ok(())),
        ("mget r1 a1 w1 x", Err(Denial::Key(3))),
        ("rename a1 w1", Ok(())),
        ("rename r1 w1", Err(Denial::Key(1))),
        ("copy r1 w1", Ok(())),
        ("copy w1 r1", Err(Denial::Key(1))),
        ("eval x 2 a1 b1 c1", Err(Denial::Key(4))),
        ("eval x 1 a1 b1 c1", Ok(())),
        ("eval x 0", Ok(())),
    ] {
        assert_eq!(check(&user, request), allowed, "{request}");
    }
}

#[test]
fn channels_match_patterns_and_patterns_only_themselves() {
    let user = user("+@all &news.* &exact");
    for (request, allowed) in [
        ("publish news.a m", Ok(())),
        ("publish other m", Err(Denial::Channel(1))),
        ("spublish other m", Err(Denial::Channel(1))),
        ("subscribe news.a exact", Ok(())),
        ("subscribe news.a other", Err(Denial::Channel(2))),
        ("ssubscribe other", Err(Denial::Channel(1))),
        ("psubscribe news.*", Ok(())),
        ("psubscribe news.a", Err(Denial::Channel(1))),
        ("psubscribe *", Err(Denial::Channel(1))),
        ("unsubscribe other", Ok(())),
        ("punsubscribe other", Ok(())),
        ("sunsubscribe other", Ok(())),
    ] {
        assert_eq!(check(&user, request), allowed, "{request}");
    }
}

#[test]
fn one_selector_must_allow_all_of_a_request() {
    let user = user("+get ~a (+set ~b) (+@all ~c &c)");
    assert_eq!(check(&user, "get a"), Ok(()));
    assert_eq!(check(&user, "set b v"), Ok(()));
    assert_eq!(check(&user, "get b"), Err(Denial::Key(1)));
    assert_eq!(check(&user, "set a v"), Err(Denial::Key(1)));
    assert_eq!(check(&user, "get c"), Ok(()));
    assert_eq!(check(&user, "publish d m"), Err(Denial::Channel(1)));
}

#[test]
fn other_users_take_the_places_of_those_that_are_there() {
    let mut users = Users::new(commands::table(), false);
    for name in ["ann", "bob"] {
        users.set(name.as_bytes(), changed(&users, name, "on >pw").unwrap());
    }
    let bob = users.find(b"bob").unwrap();
    let others = users.parse_file("f", b"user bob off\nuser cid on\n").unwrap();
    let replaced = users.replace(others);
    assert_eq!(replaced.len(), 3);
    assert_eq!(users.find(b"bob"), Some(bob), "who stays keeps the number");
    assert!(!users.get(bob).unwrap().enabled);
    assert_eq!(users.find(b"ann"), None);
    assert_eq!(users.iter().map(|(name, _)| name).collect::<Vec<_>>(), [b"bob".as_slice(), b"cid", b"default"]);
    assert!(users.default_user().is_unrestricted());
    users.check_invariants();
    assert_eq!(users.remove(DEFAULT_NAME), None);
    assert_eq!(users.remove(b"cid").map(|id| users.name(id).is_none()), Some(true));
    users.check_invariants();
}

#[test]
fn all_that_is_wrong_with_a_file_is_told_in_one_line() {
    let users = Users::new(commands::table(), false);
    let errors = |text: &str| String::from_utf8(users.parse_file("f.acl", text.as_bytes()).unwrap_err()).unwrap();
    let end = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    for (text, told) in [
        ("bob on\n", "f.acl:1 should start with user keyword followed by the username. "),
        ("user\n", "f.acl:1 should start with user keyword followed by the username. "),
        ("\n\nuser b\tc on", "'f.acl:3: username 'b\tc' contains invalid characters. "),
        ("user b on\nuser b on\n", "WARNING: Duplicate user 'b' found on line 2. "),
        (
            "user b +nosuch %x %y +nosuch2\n",
            "f.acl:1: Error in applying operation '+nosuch': Unknown command or category name in ACL. f.acl:1: Syntax error. \
             f.acl:1: Error in applying operation '+nosuch2': Unknown command or category name in ACL. ",
        ),
        ("user b (+get\n", "f.acl:1: Unmatched parenthesis in selector definition."),
    ] {
        assert_eq!(errors(text), format!("{told}{end}"));
    }
    let lines = users.lines();
    assert_eq!(lines, [b"user default on nopass sanitize-payload ~* &* +@all"]);
    let file = [lines.concat(), b"\n".to_vec()].concat();
    assert!(users.parse_file("f", &file).is_ok_and(|users| users[DEFAULT_NAME] == User::superuser(commands::table())));
}
