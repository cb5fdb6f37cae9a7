//! Model folders inside the library.

/// The files of a folder of `assets/`: pairs of a path in it and the contents.
macro_rules! files {
    ($folder:literal: $($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../assets/", $folder, "/", $path)))),*]
    };
}

pub(crate) use files;
