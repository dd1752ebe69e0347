//! Keys, and what they mean where.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What the user sees in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The table of locks.
    Table,
    /// One lock in detail.
    Detail,
    /// A line of text that is typed.
    Typing,
    /// A choice among holders.
    Choosing,
    /// Something to read, which any key closes.
    Notice,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Moves by this many lines; down if it is positive.
    Move(isize),
    /// Moves by this many screens.
    Page(isize),
    /// Goes to the first line.
    First,
    /// Goes to the last line.
    Last,
    /// Shows the selected lock in detail.
    Open,
    /// Goes back.
    Close,
    /// Sorts by the next column.
    Sort,
    /// Types a pattern of names.
    FilterNames,
    /// Types an owner, or a part of what is known of a client.
    FilterOwner,
    /// Shows also locks that nobody waits for, or no longer.
    All,
    /// Breaks a grant.
    Break,
    /// Stops looking, or goes on.
    Pause,
    /// Shows the keys.
    Help,
    /// Ends.
    Quit,
    /// Types a character.
    Type(char),
    /// Deletes a character.
    Erase,
    /// Deletes all characters.
    EraseAll,
    /// Accepts what was typed or chosen.
    Accept,
}

/// The meaning of a key; `None` if it has none there.
pub fn action(key: KeyEvent, focus: Focus) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('u') if focus == Focus::Typing => Some(Action::EraseAll),
            _ => None,
        };
    }
    match focus {
        Focus::Notice => Some(Action::Close),
        Focus::Typing => match key.code {
            KeyCode::Char(c) => Some(Action::Type(c)),
            KeyCode::Backspace => Some(Action::Erase),
            KeyCode::Enter => Some(Action::Accept),
            KeyCode::Esc => Some(Action::Close),
            _ => None,
        },
        Focus::Choosing => match key.code {
            KeyCode::Enter => Some(Action::Accept),
            KeyCode::Esc | KeyCode::Char('q') => Some(Action::Close),
            code => movement(code),
        },
        Focus::Detail => match key.code {
            KeyCode::Enter | KeyCode::Esc | KeyCode::Char('q') => Some(Action::Close),
            KeyCode::Char('b') => Some(Action::Break),
            KeyCode::Char('p') => Some(Action::Pause),
            KeyCode::Char('?') => Some(Action::Help),
            code => movement(code),
        },
        Focus::Table => match key.code {
            KeyCode::Enter => Some(Action::Open),
            // Ends the filters. It does not end the program.
            KeyCode::Esc => Some(Action::Close),
            KeyCode::Char('s') => Some(Action::Sort),
            KeyCode::Char('/') => Some(Action::FilterNames),
            KeyCode::Char('o') => Some(Action::FilterOwner),
            KeyCode::Char('a') => Some(Action::All),
            KeyCode::Char('b') => Some(Action::Break),
            KeyCode::Char('p') => Some(Action::Pause),
            KeyCode::Char('?' | 'h') => Some(Action::Help),
            KeyCode::Char('q') => Some(Action::Quit),
            code => movement(code),
        },
    }
}

fn movement(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Up | KeyCode::Char('k') => Some(Action::Move(-1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Action::Move(1)),
        KeyCode::PageUp => Some(Action::Page(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Action::Page(1)),
        KeyCode::Home | KeyCode::Char('g') => Some(Action::First),
        KeyCode::End | KeyCode::Char('G') => Some(Action::Last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: KeyCode, focus: Focus) -> Option<Action> {
        action(KeyEvent::new(code, KeyModifiers::NONE), focus)
    }

    #[test]
    fn each_key_of_the_table_has_its_meaning() {
        for (key, expected) in [
            ('j', Action::Move(1)),
            ('k', Action::Move(-1)),
            ('s', Action::Sort),
            ('/', Action::FilterNames),
            ('o', Action::FilterOwner),
            ('a', Action::All),
            ('b', Action::Break),
            ('p', Action::Pause),
            ('q', Action::Quit),
            ('?', Action::Help),
        ] {
            assert_eq!(of(KeyCode::Char(key), Focus::Table), Some(expected), "{key}");
        }
        assert_eq!(of(KeyCode::Down, Focus::Table), Some(Action::Move(1)));
        assert_eq!(of(KeyCode::Enter, Focus::Table), Some(Action::Open));
        assert_eq!(of(KeyCode::Char('x'), Focus::Table), None);
        assert_eq!(of(KeyCode::Esc, Focus::Table), Some(Action::Close), "it does not end the program");
    }

    #[test]
    fn letters_are_letters_while_text_is_typed() {
        for key in ['q', 'b', 'j', '/', '?'] {
            assert_eq!(of(KeyCode::Char(key), Focus::Typing), Some(Action::Type(key)));
        }
        assert_eq!(of(KeyCode::Enter, Focus::Typing), Some(Action::Accept));
        assert_eq!(of(KeyCode::Esc, Focus::Typing), Some(Action::Close));
        assert_eq!(of(KeyCode::Char('x'), Focus::Notice), Some(Action::Close));
        assert_eq!(of(KeyCode::Char('b'), Focus::Choosing), None);
    }

    #[test]
    fn control_c_ends_it_everywhere() {
        for focus in [Focus::Table, Focus::Detail, Focus::Typing, Focus::Choosing, Focus::Notice] {
            assert_eq!(action(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), focus), Some(Action::Quit));
        }
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(released, Focus::Table), None);
    }
}
