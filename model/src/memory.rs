//! Lists whose memory may be refused: `None` then, where `vec!` and `collect` end the process.

/// An empty list with room for so many.
pub(crate) fn room<T>(capacity: usize) -> Option<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(capacity).ok()?;
    Some(list)
}

/// So many copies of a value.
pub(crate) fn filled<T: Clone>(value: T, length: usize) -> Option<Vec<T>> {
    let mut list = room(length)?;
    list.resize(length, value);
    Some(list)
}

/// So many zeros, in memory that the system has cleared and nobody has touched yet.
pub(crate) fn zeros(length: usize) -> Option<Vec<f32>> {
    // Nothing in the standard library clears and may refuse: what is there is there a moment later too.
    drop(room::<f32>(length)?);
    Some(vec![0.0; length])
}

/// All items in their order.
pub(crate) fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Option<Vec<T>> {
    let mut list = room(items.len())?;
    list.extend(items);
    Some(list)
}

/// A copy of plain items.
pub(crate) fn copied<T: Copy>(items: &[T]) -> Option<Vec<T>> {
    collected(items.iter().copied())
}

/// Copies of lists of plain items.
pub(crate) fn copied_lists<'a, T: Copy + 'a>(
    lists: impl ExactSizeIterator<Item = &'a [T]>,
) -> Option<Vec<Vec<T>>> {
    let mut copies = room(lists.len())?;
    for list in lists {
        copies.push(copied(list)?);
    }
    Some(copies)
}

/// A copy of a text.
pub(crate) fn copied_text(text: &str) -> Option<String> {
    String::from_utf8(copied(text.as_bytes())?).ok()
}

/// Copies of texts.
pub(crate) fn copied_texts(texts: &[String]) -> Option<Vec<String>> {
    let mut copies = room(texts.len())?;
    for text in texts {
        copies.push(copied_text(text)?);
    }
    Some(copies)
}
