//! Messages: each form that a kind declares is read.

use block::Error;
use stack::{Kind, Message};

/// Checks that every form of message that the kind declares parses, with and without its optional words.
/// `values` replace the words in capital letters. Also checks that other texts are refused with an error of
/// less than 1000 bytes that lists the forms.
///
/// # Panics
/// If a check fails.
pub fn check_messages<M: Message>(kind: &Kind, values: &[(&str, &str)]) {
    assert_eq!(kind.messages, M::FORMS);
    let value = |word: &str| {
        let name = word.trim_matches(|letter| "[]…".contains(letter));
        let found = values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        assert!(found.is_some() || name.to_lowercase() == name, "a value for {name}");
        found.unwrap_or(name).to_owned()
    };
    for form in kind.messages {
        let words = form.words.split(' ');
        let all: Vec<String> = words.clone().map(value).collect();
        let required: Vec<String> = words.filter(|word| !word.starts_with('[')).map(value).collect();
        for text in [all.join(" "), format!("  {} ", required.join("  "))] {
            assert!(M::parse(kind, &text).is_ok(), "{}: {:?}", form.words, M::parse(kind, &text).err());
        }
    }
    let first: Vec<String> = kind.messages[0].words.split(' ').map(value).collect();
    for wrong in ["", "defragment", &format!("{} \u{1b}", first.join(" ")), &"x".repeat(100_000)] {
        let Err(Error::Unsupported(refused)) = M::parse(kind, wrong) else { panic!("it is read: {wrong}") };
        assert!(kind.messages.iter().all(|form| refused.contains(form.words)), "{refused}");
        assert!(refused.len() < 1000 && !refused.contains('\u{1b}'), "{refused}");
    }
}
