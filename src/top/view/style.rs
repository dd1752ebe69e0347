//! How parts look. Nothing is said by colour alone.

use ratatui::style::{Color, Modifier, Style};

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// The sixteen colours of the terminal, which its user has chosen.
    Colours,
    /// None: `NO_COLOR` is set.
    Plain,
}

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Ordinary text.
    Text,
    /// Headings, and the line at the top.
    Heading,
    /// Less important text.
    Faint,
    /// Something is wrong.
    Alarm,
    /// Nothing is wrong.
    Calm,
    /// The selected line.
    Selected,
}

impl Palette {
    /// The style of a part.
    pub fn style(self, part: Part) -> Style {
        let (colour, modifier) = match part {
            Part::Text => (None, Modifier::empty()),
            Part::Heading => (Some(Color::Cyan), Modifier::BOLD),
            Part::Faint => (Some(Color::DarkGray), Modifier::empty()),
            Part::Alarm => (Some(Color::Red), Modifier::BOLD),
            Part::Calm => (Some(Color::Green), Modifier::BOLD),
            Part::Selected => (None, Modifier::REVERSED),
        };
        let style = Style::new().add_modifier(modifier);
        if let (Palette::Colours, Some(colour)) = (self, colour) { style.fg(colour) } else { style }
    }
}
