//! Foundations of every other layer: time, errors, numbers, patterns, and memory in chunks. It imports nothing else of the crate.

/// Returns an error from the function if something is so.
macro_rules! fail_if {
    ($so:expr, $error:expr $(,)?) => {
        if $so {
            return Err($error);
        }
    };
}

/// Makes an enum whose variants have names, which stand behind `=`: `name()` returns them, and `Display` shows them. If a second text
/// follows each name, behind a colon, `meaning()` returns it. With `in LIST` behind the name of the enum, there are also a constant `LIST`
/// of all variants and `from_name()`.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $of:ident in $list:ident {
        $($(#[$doc:meta])* $variant:ident = $name:literal $(: $meaning:literal)?,)*
    }) => {
        named! { $(#[$meta])* $vis enum $of { $($(#[$doc])* $variant = $name $(: $meaning)?,)* } }

        impl $of {
            /// All of them, in the order of the enumeration.
            $vis const $list: [$of; [$($name),*].len()] = [$($of::$variant),*];

            /// The one with this name.
            #[allow(dead_code)]
            $vis fn from_name(name: &str) -> Option<$of> {
                $of::$list.into_iter().find(|one| one.name() == name)
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $of:ident {
        $($(#[$doc:meta])* $variant:ident = $name:literal: $meaning:literal,)*
    }) => {
        named! { $(#[$meta])* $vis enum $of { $($(#[$doc])* $variant = $name,)* } }

        impl $of {
            /// What it means, in words.
            $vis const fn meaning(self) -> &'static str {
                match self {
                    $($of::$variant => $meaning,)*
                }
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $of:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        $vis enum $of {
            $($(#[$doc])* $variant,)*
        }

        impl $of {
            /// Its name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($of::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $of {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Makes setters: methods that take a value, do to it what stands in braces, and return it.
macro_rules! setters {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($self:ident $(, $argument:ident: $type:ty)*) $set:block)*) => {$(
        $(#[$meta])*
        $vis fn $name(mut $self $(, $argument: $type)*) -> Self {
            $set
            $self
        }
    )*};
}

/// How many steps a test makes. The second number is for Miri, which takes some thousand times as long for each.
#[cfg(test)]
pub(crate) const fn scaled<T: Copy>(many: T, under_miri: T) -> T {
    if cfg!(miri) { under_miri } else { many }
}

pub mod arguments;
pub mod chunks;
pub mod durations;
pub mod error;
pub mod glob;
pub mod ids;
pub mod integer;
pub mod kept;
pub mod number;
pub mod prefetch;
pub mod rate;
pub mod segments;
pub mod time;
pub mod version;
pub mod words;
