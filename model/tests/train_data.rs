//! From files to batches: what is read, what is left out, what a model sees, and in which order.

#[path = "support/tiny.rs"]
mod tiny;

use headrow::Tokenizer;
use headrow::train::{
    BadLines, BatchOptions, Batches, Corpus, DataOptions, Dataset, DatasetOptions, Examples,
    Framing, Layout, Lowercase, Order, Task, VocabularyOptions, vocabulary,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use tiny::{Folder, Random};

fn file(folder: &Folder, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.0.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn tokenizer(texts: &[&str], options: &VocabularyOptions) -> Tokenizer {
    Tokenizer::from_bytes(&vocabulary(texts.iter().copied(), options).unwrap()).unwrap()
}

#[test]
fn bad_lines_are_described_and_left_out_or_refused() {
    let folder = Folder::new("data-bad");
    let one = file(&folder, "one.tsv", b"a\tB\nno tab\nx\ty\tz\n\tempty\nempty\t \n\nlast \t C");
    let two = file(&folder, "two.tsv", b"caf\xe9\tX\r\nD\tE\r\n");
    let paths = [&one, &two];
    let corpus = Corpus::read(&paths, &DataOptions::default()).unwrap();
    let pairs: Vec<_> =
        corpus.records().iter().map(|r| (&*r.source, r.target.as_deref().unwrap())).collect();
    assert_eq!(pairs, [("a", "B"), ("last ", " C"), ("D", "E")]);
    assert_eq!(corpus.place(corpus.records()[2].origin), format!("{}: line 2", two.display()));
    let problems = [
        (&one, 2, "no tab between a source and a target"),
        (&one, 3, "several tabs"),
        (&one, 4, "an empty source"),
        (&one, 5, "an empty target"),
        (&one, 6, "no tab between a source and a target"),
        (&two, 1, "not UTF-8 from byte 4 on"),
    ];
    let problems =
        problems.map(|(path, line, problem)| format!("{}: line {line}: {problem}", path.display()));
    assert_eq!((corpus.skipped().count(), corpus.skipped().first()), (6, &problems[..]));

    let strict = DataOptions::default().with_bad_lines(BadLines::Refuse);
    assert_eq!(Corpus::read(&paths, &strict).unwrap_err().to_string(), problems[0]);
    let missing = Corpus::read(&[folder.0.join("none.tsv")], &strict).unwrap_err().to_string();
    assert!(missing.contains("none.tsv"), "{missing}");

    for (lowercase, expected) in [(Lowercase::Sources, ("d", "E")), (Lowercase::Both, ("d", "e"))] {
        let corpus =
            Corpus::read(&paths, &DataOptions::default().with_lowercase(lowercase)).unwrap();
        let last = corpus.records().last().unwrap();
        assert_eq!((&*last.source, last.target.as_deref().unwrap()), expected);
    }
}

#[test]
fn a_text_a_line_or_a_text_a_file() {
    let folder = Folder::new("data-lines");
    let path = file(&folder, "lines.txt", b"One\r\n\ntwo\tcolumns\n\xff\nend");
    let texts = |layout| {
        let corpus = Corpus::read(&[&path], &DataOptions::default().with_layout(layout)).unwrap();
        assert_eq!(corpus.skipped().count(), 1);
        corpus.texts().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(texts(Layout::Lines), ["One", "two\tcolumns", "end"]);
    assert_eq!(texts(Layout::Text), ["One\n\ntwo\tcolumns\nend\n"]);
}

#[test]
fn words_are_numbered_by_their_counts() {
    let options = VocabularyOptions::words();
    let texts = ["b a c", "c AA b", "c"];
    let all = tokenizer(&texts, &options);
    let tokens: Vec<String> = (0..).map_while(|id| all.token(id)).collect();
    assert_eq!(tokens, ["<pad>", "<s>", "</s>", "<unk>", "c", "b", "AA", "a"]);
    assert_eq!(all.encode("a  b x c", None).unwrap().ids, [7, 5, 3, 4, 2]);
    assert_eq!(all.decode(&[1, 7, 5, 4, 2]).unwrap(), "a b c");
    let small = tokenizer(&texts, &options.with_size(6));
    assert_eq!((small.vocabulary(), small.id("a")), (6, None));
    for (size, texts) in [(4, &texts[..]), (100, &[" ", ""])] {
        assert!(vocabulary(texts.iter().copied(), &options.with_size(size)).is_err());
    }
}

const SENTENCES: [&str; 6] = [
    "Ein Mann mit einem Hut.",
    "Eine Frau mit einem Hund – und noch einem!",
    "Der Hund bellt.  Der Mann hört ihn nicht;",
    "der Hut, der Hund, der Mann",
    "a man with a hat",
    "tab\there, nbsp\u{a0}there",
];

#[test]
fn parts_of_words_survive_the_way_there_and_back() {
    let bytes = vocabulary(SENTENCES, &VocabularyOptions::pairs(60)).unwrap();
    let tokenizer = Tokenizer::from_bytes(&bytes).unwrap();
    assert_eq!(tokenizer.vocabulary(), 60);
    for text in SENTENCES.iter().chain(&["Mann Hund", "", "und  und"]) {
        let encoding = tokenizer.encode(*text, None).unwrap();
        assert_eq!(encoding.ids.last(), Some(&2));
        assert_eq!(tokenizer.decode(&encoding.ids).unwrap(), *text);
        assert_eq!(tokenizer.encode_plain(text).unwrap(), encoding.ids[..encoding.ids.len() - 1]);
    }
    assert!(tokenizer.encode_plain("Mann").unwrap().len() == 1, "a frequent word is a token");
    assert_eq!(tokenizer.encode_plain("☃").unwrap().last(), Some(&3));
    let mut turned = SENTENCES;
    turned.reverse();
    assert_eq!(vocabulary(turned, &VocabularyOptions::pairs(60)).unwrap(), bytes);
    assert!(
        vocabulary(SENTENCES, &VocabularyOptions::pairs(20)).is_err(),
        "more letters than that"
    );
}

#[test]
fn texts_that_go_on_are_cut_where_their_lines_are() {
    let text = "To be, or not\n\n  to be.\nTo be\n";
    let options = VocabularyOptions::pairs(40).with_framing(Framing::Begin);
    let tokenizer = tokenizer(&[text], &options);
    let ids = tokenizer.encode(text, None).unwrap().ids;
    assert_eq!((ids[0], tokenizer.decode(&ids).unwrap().as_str()), (1, text));
    let lines: Vec<u32> =
        text.split_inclusive('\n').flat_map(|line| tokenizer.encode_plain(line).unwrap()).collect();
    assert_eq!(lines, ids[1..]);
}

/// With its end, or in lower case, a line of a MiB has more bytes than a tokenizer takes otherwise.
#[test]
fn the_longest_lines_are_learnt_from() {
    let folder = Folder::new("data-longest");
    let most = Tokenizer::MAX_TEXT_BYTES;
    // Two bytes, and three in lower case.
    let grows = "Ⱥ ".repeat(most / 3) + " ";
    assert!(grows.len() == most && grows.to_lowercase().len() > most);
    let plain = "a ".repeat(most / 2);
    let path = file(&folder, "longest.txt", format!("{plain}\n{grows}\n").as_bytes());
    let tokenizer = tokenizer(&["a ⱥ"], &VocabularyOptions::words());
    let length = 1 << 18;
    let task = DatasetOptions::new(Task::Continuation).with_max_target(length);
    let tokens = most / 2 + most / 3;
    for (layout, texts) in [(Layout::Text, 1), (Layout::Lines, 2)] {
        let options = DataOptions::default().with_layout(layout).with_lowercase(Lowercase::Sources);
        let corpus = Corpus::read(&[&path], &options).unwrap();
        assert_eq!((corpus.skipped().count(), corpus.records().len()), (0, texts));
        let data = Dataset::new(&corpus, &tokenizer, &task).unwrap();
        assert_eq!(data.skipped().count(), 0, "{:?}", data.skipped().first());
        let pieces = match layout {
            Layout::Text => (tokens + 1).div_ceil(length),
            _ => (most / 2 + 1).div_ceil(length) + (most / 3 + 1).div_ceil(length),
        };
        assert_eq!(data.len(), pieces, "{layout:?}");
    }
    let pair = file(&folder, "pair.tsv", format!("{}\ta\n", &grows[..most - 4]).as_bytes());
    let options = DataOptions::default().with_lowercase(Lowercase::Both);
    let corpus = Corpus::read(&[pair], &options).unwrap();
    let task = DatasetOptions::new(Task::Translation).with_max_source(most);
    assert_eq!(Dataset::new(&corpus, &tokenizer, &task).unwrap().len(), 1);
}

/// A corpus of random pairs of letters, and its vocabulary.
fn pairs(folder: &Folder, count: usize) -> (Corpus, Tokenizer) {
    let random = &mut Random(3);
    let mut side = || {
        let letters = (0..1 + random.below(30)).map(|_| char::from(b'a' + random.below(26) as u8));
        letters.map(String::from).collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<String> = (0..count).map(|_| format!("{}\t{}\n", side(), side())).collect();
    let path = file(folder, "pairs.tsv", lines.concat().as_bytes());
    let corpus = Corpus::read(&[path], &DataOptions::default()).unwrap();
    let bytes = vocabulary(corpus.texts(), &VocabularyOptions::words()).unwrap();
    (corpus, Tokenizer::from_bytes(&bytes).unwrap())
}

#[test]
fn a_translation_is_read_behind_its_beginning_and_said_to_its_end() {
    let folder = Folder::new("data-pairs");
    let path = file(&folder, "pairs.tsv", b"a b\tX Y Z\nb\tX\na b c d\tX\nc\tX Y Z Z\n");
    let corpus = Corpus::read(&[&path], &DataOptions::default()).unwrap();
    let tokenizer = tokenizer(&corpus.texts().collect::<Vec<_>>(), &VocabularyOptions::words());
    let options = DatasetOptions::new(Task::Translation).with_max_source(4).with_max_target(4);
    let dataset = Dataset::new(&corpus, &tokenizer, &options).unwrap();
    assert_eq!((dataset.len(), dataset.skipped().count()), (2, 2));
    let told = dataset.skipped().first().join("\n");
    assert!(told.contains("line 3: a source of 5 tokens, the limit is 4"), "{told}");
    assert!(told.contains("line 4: a target of 5 tokens, the limit is 4"), "{told}");
    let batches = Batches::new(&dataset, BatchOptions::new(6).with_order(Order::Given)).unwrap();
    let epoch = batches.epoch(0);
    let mut examples = Examples::default();
    epoch.fill(0, &mut examples);
    let id = |token: &str| tokenizer.id(token).unwrap();
    assert_eq!(epoch.len(), 1);
    assert_eq!(examples.sources.get(0), [id("a"), id("b"), 2]);
    assert_eq!(examples.targets.get(0), [1, id("X"), id("Y"), id("Z")]);
    assert_eq!(examples.targets.get(1), [1, id("X")]);
    let labels = ["X", "Y", "Z", "</s>", "X", "</s>"].map(|token| Some(id(token)));
    assert_eq!((&examples.labels[..], examples.predicted()), (&labels[..], 6));
    assert!(Batches::new(&dataset, BatchOptions::new(3)).is_err(), "an example has four tokens");
    let strict = DataOptions::default().with_bad_lines(BadLines::Refuse);
    let corpus = Corpus::read(&[&path], &strict).unwrap();
    let refused = Dataset::new(&corpus, &tokenizer, &options).unwrap_err().to_string();
    assert!(refused.contains("line 3"), "{refused}");
}

#[test]
fn every_epoch_has_every_example_once_in_batches_that_fit() {
    let folder = Folder::new("data-batches");
    let (corpus, tokenizer) = pairs(&folder, 1000);
    let dataset =
        Dataset::new(&corpus, &tokenizer, &DatasetOptions::new(Task::Translation)).unwrap();
    let options = BatchOptions::new(200).with_seed(5);
    let epoch = Batches::new(&dataset, options).unwrap().epoch(3);
    let mut examples = Examples::default();
    let (mut seen, mut small, mut spread) = (BTreeSet::new(), 0, 0);
    for batch in 0..epoch.len() {
        epoch.fill(batch, &mut examples);
        let sides = [&examples.sources, &examples.targets];
        let tokens = sides.map(|side| side.ids().len());
        assert!(tokens.iter().all(|&tokens| tokens <= 200));
        assert_eq!(
            (examples.len(), examples.labels.len()),
            (epoch.members(batch).len(), tokens[1])
        );
        small += usize::from(tokens.iter().all(|&tokens| tokens < 140));
        assert!(epoch.members(batch).iter().all(|&example| seen.insert(example)));
        let lengths: Vec<usize> =
            (0..examples.len()).map(|i| sides.map(|side| side.length(i)).iter().sum()).collect();
        spread = spread.max(lengths.iter().max().unwrap() - lengths.iter().min().unwrap());
    }
    assert_eq!(seen.len(), 1000);
    assert!(small <= 1, "{small} batches are nearly empty");
    assert!(spread <= 16, "lengths in a batch differ by {spread}");
}

#[test]
fn the_seed_and_the_epoch_decide_the_order_and_nothing_else() {
    let folder = Folder::new("data-order");
    let (corpus, tokenizer) = pairs(&folder, 300);
    let dataset =
        Dataset::new(&corpus, &tokenizer, &DatasetOptions::new(Task::Translation)).unwrap();
    let order = |seed: u64, epoch: u64| {
        let batches = Batches::new(&dataset, BatchOptions::new(300).with_seed(seed)).unwrap();
        let epoch = batches.epoch(epoch);
        (0..epoch.len()).map(|batch| epoch.members(batch).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(order(1, 4), order(1, 4));
    let others = [order(1, 5), order(2, 4), order(1 << 32, 4)];
    assert!(others.iter().all(|other| *other != order(1, 4)));
    // Recorded: a run that is resumed on another machine, or with a later version, goes on where it was.
    assert_eq!(order(1, 0)[0], [247, 89, 290, 79, 159, 177, 246, 78, 57, 295, 167, 15]);
}

#[test]
fn a_continuation_predicts_every_token_once() {
    let folder = Folder::new("data-causal");
    let text = "one two three four five six seven\neight\n";
    let path = file(&folder, "text.txt", text.as_bytes());
    let corpus = Corpus::read(&[path], &DataOptions::default().with_layout(Layout::Text)).unwrap();
    let tokenizer = tokenizer(&[text], &VocabularyOptions::words().with_framing(Framing::Begin));
    let options = DatasetOptions::new(Task::Continuation).with_max_target(4);
    let dataset = Dataset::new(&corpus, &tokenizer, &options).unwrap();
    let epoch =
        Batches::new(&dataset, BatchOptions::new(100).with_order(Order::Given)).unwrap().epoch(0);
    let mut examples = Examples::default();
    epoch.fill(0, &mut examples);
    let mut expected = tokenizer.encode_plain(text).unwrap();
    expected.push(2);
    let labels: Vec<u32> = examples.labels.iter().copied().flatten().collect();
    assert_eq!((labels.len(), &labels), (9, &expected));
    assert!(examples.sources.is_empty());
    let lengths: Vec<usize> = examples.targets.iter().map(<[u32]>::len).collect();
    assert_eq!(lengths, [4, 4, 1]);
    assert_eq!(examples.targets.get(1), [&[1], &expected[4..7]].concat());
}

#[test]
fn masks_hide_15_of_100_tokens_in_another_way_every_epoch() {
    let folder = Folder::new("data-masked");
    let random = &mut Random(9);
    let words: Vec<String> = (0..20_000).map(|_| format!("w{}", random.below(50))).collect();
    let lines: Vec<String> = words.chunks(40).map(|words| words.join(" ") + "\n").collect();
    let path = file(&folder, "lines.txt", lines.concat().as_bytes());
    let corpus = Corpus::read(&[path], &DataOptions::default().with_layout(Layout::Lines)).unwrap();
    let both = VocabularyOptions::words().with_framing(Framing::Both);
    let bytes = vocabulary(corpus.texts(), &both).unwrap();
    let tokenizer = Tokenizer::from_bytes(&bytes).unwrap();
    let dataset = Dataset::new(&corpus, &tokenizer, &DatasetOptions::new(Task::Masking)).unwrap();
    let batches =
        Batches::new(&dataset, BatchOptions::new(30_000).with_order(Order::Given)).unwrap();
    let read = |epoch: u64| {
        let mut examples = Examples::default();
        batches.epoch(epoch).fill(0, &mut examples);
        examples
    };
    let examples = read(0);
    assert_eq!((examples.len(), examples.targets.ids().len()), (500, 21_000));
    let (mut masked, mut kept, mut replaced) = (0.0, 0.0, 0.0);
    let mut original = Vec::new();
    for (&id, label) in examples.targets.ids().iter().zip(&examples.labels) {
        original.push(label.unwrap_or(id));
        match label {
            None => assert_ne!(id, 4),
            Some(_) if id == 4 => masked += 1.0,
            Some(label) if *label == id => kept += 1.0,
            Some(_) => {
                assert!(id > 4, "no special token stands for another");
                replaced += 1.0;
            }
        }
    }
    let texts: Vec<u32> =
        corpus.texts().flat_map(|text| tokenizer.encode(text, None).unwrap().ids).collect();
    assert_eq!(original, texts);
    // Of 20 000, four standard deviations.
    let hidden = masked + kept + replaced;
    assert!((hidden / 20_000.0 - 0.15_f64).abs() < 0.01, "{hidden}");
    assert!((masked / hidden - 0.8).abs() < 0.03, "{masked} of {hidden}");
    assert!((replaced / hidden - 0.1).abs() < 0.025, "{replaced} of {hidden}");
    assert_eq!(read(0), examples);
    assert_ne!(read(1).labels, examples.labels);
}

#[test]
fn a_task_that_the_data_or_the_tokenizer_cannot_serve_is_refused() {
    let folder = Folder::new("data-refused");
    let path = file(&folder, "lines.txt", b"a b\n");
    let corpus = Corpus::read(&[path], &DataOptions::default().with_layout(Layout::Lines)).unwrap();
    let tokenizer = tokenizer(&["a b"], &VocabularyOptions::words());
    let refused = |options| Dataset::new(&corpus, &tokenizer, &options).unwrap_err().to_string();
    assert!(refused(DatasetOptions::new(Task::Translation)).contains("pairs"));
    assert!(refused(DatasetOptions::new(Task::Masking)).contains("<mask>"));
    let none = refused(DatasetOptions::new(Task::Continuation).with_max_target(0));
    assert!(none.contains("max_target"), "{none}");
}
