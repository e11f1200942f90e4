//! Grammar of the one-line form, independent of the kinds:
//!
//! ```text
//! stack    = part { WORD "=" WORD }                   (settings of the stack itself: shards=4)
//! part     = WORD [ "(" [ argument { "," argument } [","] ] ")" ]
//! argument = [ WORD "=" ] value
//! value    = part | STRING | "[" [ value { "," value } [","] ] "]"
//! ```
//!
//! A WORD is anything without white space, control characters and `,()[]="`; a STRING is in double quotes and
//! knows `\"`, `\\`, ` `, `\r`, `\t` and `\u{HEX}`. Nesting is bounded, so hostile text can't exhaust the
//! thread's stack.

use crate::graph::MAX_LEVELS;
use crate::problem::{Problem, Source, shown};
use crate::raw::At;

/// Most nested values: each part may be in a list, and has values itself.
const MAX_NESTED: usize = 2 * MAX_LEVELS + 1;

/// Syntax node of a value.
#[derive(Debug)]
pub(crate) enum Node {
    /// A word, with arguments if it has parentheses: a part or a bare value, depending on the key.
    Word { word: At<String>, arguments: Option<Vec<Argument>> },
    /// A quoted text.
    Text(String),
    /// Elements of a list in brackets.
    List(Vec<At<Node>>),
}

/// A value in parentheses, with its key if it was given.
#[derive(Debug)]
pub(crate) struct Argument {
    pub key: Option<At<String>>,
    pub value: At<Node>,
}

/// A whole line.
#[derive(Debug)]
pub(crate) struct Line {
    pub root: At<Node>,
    pub settings: Vec<(At<String>, At<String>)>,
}

/// Whether a bare word may contain this character.
pub(crate) fn is_word_character(letter: char) -> bool {
    !letter.is_whitespace()
        && !letter.is_control()
        && !matches!(letter, ',' | '(' | ')' | '[' | ']' | '=' | '"')
}

/// Parses a line up to its first error.
pub(crate) fn parse(source: &Source) -> Result<Line, Problem> {
    let mut parser = Parser { source, position: 0, level: 0 };
    let root = parser.value()?;
    let mut settings = Vec::new();
    while parser.peek().is_some() {
        let key = parser.word("the end, or a setting of the stack such as shards=4")?;
        parser.expect('=', "\"=\" and a value")?;
        settings.push((key, parser.word("a value")?));
    }
    Ok(Line { root, settings })
}

struct Parser<'a> {
    source: &'a Source,
    position: usize,
    level: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.source.text()[self.position..]
    }

    /// Returns the next character that isn't white space; its position becomes the current one.
    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.position += rest.len() - rest.trim_start().len();
        self.rest().chars().next()
    }

    fn unexpected(&mut self, expected: &str) -> Problem {
        let found = match self.peek() {
            None => "the end of the line".to_owned(),
            Some(letter) => format!("\"{}\"", shown(letter.encode_utf8(&mut [0; 4]))),
        };
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        let message = format!("found {found}, expected {expected}");
        self.source.problem(self.position..self.position + length, message)
    }

    fn take(&mut self, letter: char) -> bool {
        let there = self.peek() == Some(letter);
        if there {
            self.position += letter.len_utf8();
        }
        there
    }

    fn expect(&mut self, letter: char, expected: &str) -> Result<(), Problem> {
        if self.take(letter) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn word(&mut self, expected: &str) -> Result<At<String>, Problem> {
        self.peek();
        let rest = self.rest();
        let length = rest.find(|letter| !is_word_character(letter)).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.unexpected(expected));
        }
        let word = At::new(rest[..length].to_owned(), self.position..self.position + length);
        self.position += length;
        Ok(word)
    }

    fn value(&mut self) -> Result<At<Node>, Problem> {
        if self.level >= MAX_NESTED {
            let message = format!("nested too deeply: expected at most {MAX_NESTED} levels");
            return Err(self.source.problem(self.position..self.position + 1, message));
        }
        self.level += 1;
        let value = match self.peek() {
            Some('"') => self.string(),
            Some('[') => self.list(),
            _ => self.word_or_part(),
        };
        self.level -= 1;
        value
    }

    fn word_or_part(&mut self) -> Result<At<Node>, Problem> {
        let word = self.word("a kind such as file(disk.img), or a value")?;
        let start = word.span.start;
        if !self.take('(') {
            let span = word.span.clone();
            return Ok(At::new(Node::Word { word, arguments: None }, span));
        }
        let mut arguments = Vec::new();
        while self.peek() != Some(')') {
            arguments.push(self.argument()?);
            if !self.take(',') && self.peek() != Some(')') {
                return Err(self.unexpected("\",\" or \")\""));
            }
        }
        self.position += 1;
        Ok(At::new(Node::Word { word, arguments: Some(arguments) }, start..self.position))
    }

    fn argument(&mut self) -> Result<Argument, Problem> {
        let value = self.value()?;
        if self.peek() != Some('=') {
            return Ok(Argument { key: None, value });
        }
        match value.value {
            Node::Word { word, arguments: None } => {
                self.position += 1;
                Ok(Argument { key: Some(word), value: self.value()? })
            }
            _ => Err(self.unexpected("\",\" or \")\": only a word can be a key")),
        }
    }

    fn list(&mut self) -> Result<At<Node>, Problem> {
        let start = self.position;
        self.position += 1;
        let mut items = Vec::new();
        while self.peek() != Some(']') {
            items.push(self.value()?);
            if !self.take(',') && self.peek() != Some(']') {
                return Err(self.unexpected("\",\" or \"]\""));
            }
        }
        self.position += 1;
        Ok(At::new(Node::List(items), start..self.position))
    }

    fn string(&mut self) -> Result<At<Node>, Problem> {
        let start = self.position;
        let mut text = String::new();
        let mut letters = self.source.text()[start + 1..].char_indices();
        while let Some((offset, letter)) = letters.next() {
            let at = start + 1 + offset;
            match letter {
                '"' => {
                    self.position = at + 1;
                    return Ok(At::new(Node::Text(text), start..self.position));
                }
                '\\' => match escape(&mut letters) {
                    Some(letter) => text.push(letter),
                    None => {
                        let message = "unknown escape, expected one of \\\" \\\\ \\n \\r \\t \\u{HEX}";
                        return Err(self.source.problem(at..at + 2, message));
                    }
                },
                other => text.push(other),
            }
        }
        Err(self.source.problem(start..start + 1, "this text has no end: expected another \""))
    }
}

/// Returns the character of an escape sequence, after its backslash.
fn escape(letters: &mut std::str::CharIndices<'_>) -> Option<char> {
    match letters.next()?.1 {
        '"' => Some('"'),
        '\\' => Some('\\'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'u' => {
            let (hex, rest) = letters.as_str().strip_prefix('{')?.split_once('}')?;
            let letter =
                u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() <= 6).and_then(char::from_u32)?;
            let remaining = rest.len();
            while letters.as_str().len() > remaining {
                letters.next();
            }
            Some(letter)
        }
        _ => None,
    }
}
