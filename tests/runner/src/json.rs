//! A reader of JSON (RFC 8259), for the messages of cargo: the runner is built before everything else and has
//! no dependencies.

/// A JSON value. Numbers are kept as their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Reads a text that is one value.
    pub fn parse(text: &str) -> Result<Value, String> {
        let mut reader = Reader { text, place: 0 };
        let value = reader.value()?;
        reader.space();
        if reader.place != text.len() {
            return Err(reader.expected("the end"));
        }
        Ok(value)
    }

    /// Member of an object; `Null` if there is none.
    pub fn get(&self, name: &str) -> &Value {
        let Value::Object(members) = self else { return &Value::Null };
        members.iter().find(|(member, _)| member == name).map_or(&Value::Null, |(_, value)| value)
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    /// Number of bytes that have been read; always at the border of a character.
    place: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.place..]
    }

    fn expected(&self, what: &str) -> String {
        format!("byte {}: expected {what}", self.place)
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.place += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Reads `token`, after white space, if it follows.
    fn takes(&mut self, token: &str) -> bool {
        self.space();
        let follows = self.rest().starts_with(token);
        self.place += if follows { token.len() } else { 0 };
        follows
    }

    fn needs(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(self.expected(token)) }
    }

    fn value(&mut self) -> Result<Value, String> {
        for (token, value) in
            [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))]
        {
            if self.takes(token) {
                return Ok(value);
            }
        }
        if self.takes("{") {
            let member = |reader: &mut Self| {
                let name = reader.string()?;
                reader.needs(":")?;
                Ok((name, reader.value()?))
            };
            return self.items("}", member).map(Value::Object);
        }
        if self.takes("[") {
            return self.items("]", Self::value).map(Value::List);
        }
        if self.rest().starts_with('"') {
            return self.string().map(Value::Text);
        }
        let is_of_number = |char: char| char.is_ascii_digit() || "+-.eE".contains(char);
        let length = self.rest().find(|char| !is_of_number(char)).unwrap_or(self.rest().len());
        if length == 0 {
            return Err(self.expected("a value"));
        }
        let number = self.rest()[..length].to_owned();
        self.place += length;
        Ok(Value::Number(number))
    }

    /// Reads items with commas between them, and the token `end`.
    fn items<T>(
        &mut self,
        end: &str,
        item: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let mut items = Vec::new();
        if self.takes(end) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.takes(",") {
                self.needs(end)?;
                return Ok(items);
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.needs("\"")?;
        let mut string = String::new();
        loop {
            let length = self.rest().find(['"', '\\']).ok_or_else(|| self.expected("the end of a string"))?;
            string.push_str(&self.rest()[..length]);
            let is_end = self.rest()[length..].starts_with('"');
            self.place += length + 1;
            if is_end {
                return Ok(string);
            }
            string.push(self.escaped()?);
        }
    }

    /// Reads the characters after a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let char = self.rest().chars().next().ok_or_else(|| self.expected("an escape"))?;
        self.place += char.len_utf8();
        Ok(match char {
            '"' | '\\' | '/' => char,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let mut units = vec![first];
                // A character beyond the first 65536 is two units.
                if (0xD800..0xDC00).contains(&first) && self.rest().starts_with("\\u") {
                    self.place += 2;
                    units.push(self.unit()?);
                }
                let char = char::decode_utf16(units).next().and_then(Result::ok);
                char.ok_or_else(|| self.expected("no unpaired surrogate"))?
            }
            _ => return Err(self.expected("an escape")),
        })
    }

    /// Reads four hexadecimal digits.
    fn unit(&mut self) -> Result<u16, String> {
        let digits =
            self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.expected("four hexadecimal digits"))?;
        self.place += 4;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds_are_read() {
        let text = r#" {"a": [1, -2.5e3, true, false, null, {}, []], "b": {"c": "d"}, "": ""} "#;
        let value = Value::parse(text).unwrap();
        let number = |text: &str| Value::Number(text.to_owned());
        let (list, object) = (Value::List(Vec::new()), Value::Object(Vec::new()));
        let bools = [Value::Bool(true), Value::Bool(false), Value::Null];
        let expected = [&[number("1"), number("-2.5e3")], &bools[..], &[object, list]].concat();
        assert_eq!(value.get("a"), &Value::List(expected));
        assert_eq!(value.get("b").get("c").text(), Some("d"));
        assert_eq!(value.get("").text(), Some(""));
        assert_eq!(value.get("b").get("c").get("d"), &Value::Null);
    }

    #[test]
    fn escapes_of_strings_are_read() {
        let value = Value::parse(r#""é \"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#).unwrap();
        assert_eq!(value.text(), Some("é \"\\/\u{8}\u{c}\n\r\té😀"));
    }

    #[test]
    fn other_texts_are_refused() {
        let wrong = [
            "",
            "{",
            "[1",
            "[1,]",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#""a"#,
            r#""\x""#,
            r#""\u12""#,
            r#""\ud83d""#,
            "{} {}",
            "nil",
        ];
        for text in wrong {
            assert!(Value::parse(text).is_err(), "{text}");
        }
    }
}
