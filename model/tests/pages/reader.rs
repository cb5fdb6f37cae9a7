//! Finds commands, links and names in the Markdown of a page.

/// A command in a block of code, or a mention of one within a sentence.
#[derive(Debug, PartialEq)]
pub(crate) struct Command {
    /// Program, arguments and redirections, quotes taken off.
    pub(crate) words: Vec<String>,
    /// Whether it stands in a block, to be run as it is.
    pub(crate) whole: bool,
}

/// Programs that a line of a block or a piece of code within a sentence begins with when it is a command.
const PROGRAMS: [&str; 6] = ["headrow", "cargo", "hf", "bash", "python", "python3"];

/// All commands of a page in their order.
pub(crate) fn commands(page: &str) -> Vec<Command> {
    let (mut commands, mut block, mut begun) = (Vec::new(), None, String::new());
    for line in page.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, None) => {
                let pieces = code_spans(line).into_iter().map(|piece| words(piece, false));
                commands.extend(pieces.filter(is_command));
            }
            (None, Some("sh" | "text")) => match line.strip_suffix('\\') {
                Some(part) => begun += part,
                None => {
                    let command = words(&(std::mem::take(&mut begun) + line), true);
                    // Blocks of text hold drawings, too; in one for a shell every line is a command.
                    let all = block == Some("sh") && !command.words.is_empty();
                    commands.extend((all || is_command(&command)).then_some(command));
                }
            },
            _ => {}
        }
    }
    assert_eq!((block, &*begun), (None, ""), "a block without an end");
    commands
}

fn is_command(command: &Command) -> bool {
    // One word is a name: of the program, the crate.
    command.words.len() > 1 && PROGRAMS.contains(&&*command.words[0])
}

/// The words of a shell command without expansions; variables that are set before it are passed over.
fn words(line: &str, whole: bool) -> Command {
    let quoted = line.split('"').enumerate();
    let words = quoted.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    let set = |word: &String| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    Command { words: words.skip_while(set).collect(), whole }
}

/// What stands between backticks in a line.
pub(crate) fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Lines outside of blocks.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut block = false;
    page.lines().filter(move |line| {
        let fence = line.starts_with("```");
        block ^= fence;
        !block && !fence
    })
}

/// Targets of links to files of the project, without what stands behind `#`.
pub(crate) fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = prose(page).flat_map(|line| line.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let targets = targets.map(|target| target.split('#').next().unwrap_or_default());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn commands_are_found_wherever_they_stand() {
    let page = "`cargo test -p x` and `X=1 cargo doc`, `headrow`\n```sh\nrm \"a b\"\nheadrow \\\n  info < f\n```\n\
                ```text\nwords\nheadrow embed\n```\n```rust\nheadrow code\n```\n";
    let expected = [
        (false, "cargo test -p x"),
        (false, "cargo doc"),
        (true, "rm|a b"),
        (true, "headrow info < f"),
        (true, "headrow embed"),
    ];
    let found: Vec<(bool, String)> = commands(page)
        .into_iter()
        .map(|command| {
            let separator = if command.words[0] == "rm" { "|" } else { " " };
            (command.whole, command.words.join(separator))
        })
        .collect();
    assert_eq!(found, expected.map(|(whole, words)| (whole, words.to_owned())));
}

#[test]
fn links_are_those_to_files() {
    let page = "[a](b.md#c) [d](https://e.f) [g](#h)\n```\n[i](j)\n```\n![k](l.svg)";
    assert_eq!(links(page).collect::<Vec<_>>(), ["b.md", "l.svg"]);
}
