//! Files that are there as a whole or not at all, whenever the process or the machine stops.
//!
//! What is written goes to a temporary name first, is brought to the disk, and gets its own name in one step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// What temporary names begin with.
const TEMPORARY: &str = ".partial-";
/// Bytes that are read or turned into a file's form at a time.
pub(super) const PIECE: usize = 64 << 10;

/// What a file must be for its content to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seal {
    bytes: u64,
    /// FNV-1a of 64 bits. Any change of one byte shows; it does not guard against intent.
    pub(super) checksum: u64,
}

impl Seal {
    pub(super) const EMPTY: Seal = Seal { bytes: 0, checksum: 0xcbf2_9ce4_8422_2325 };

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for &byte in bytes {
            self.checksum = (self.checksum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The seal of a file as it is now.
    pub(super) fn of_file(path: &Path) -> Result<Seal> {
        crate::config::regular_file(path)?;
        let mut file = File::open(path).map_err(Error::io(path))?;
        let (mut seal, mut piece) = (Seal::EMPTY, vec![0; PIECE]);
        loop {
            match file.read(&mut piece).map_err(Error::io(path))? {
                0 => return Ok(seal),
                read => seal.add(&piece[..read]),
            }
        }
    }
}

/// A file that keeps its seal while it is written.
struct Sealed {
    file: File,
    seal: Seal,
}

impl Write for Sealed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.seal.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file that nobody reads yet, down to the disk.
pub(super) fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<Seal> {
    let fill = || {
        let sealed = Sealed { file: File::create(path)?, seal: Seal::EMPTY };
        let mut writer = BufWriter::with_capacity(PIECE, sealed);
        content(&mut writer)?;
        let sealed = writer.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        sealed.file.sync_all()?;
        Ok(sealed.seal)
    };
    fill().map_err(Error::io(path))
}

/// Puts a file in the place of the one that may be there. One with the same content is left alone.
pub(super) fn replace(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    let temporary = temporary(path);
    let done = write(&temporary, content).and_then(|seal| settle(&temporary, path, seal));
    if done.is_err() {
        // What went wrong is told; that something is left behind as well would not help.
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// Gives a file that is written its name.
fn settle(temporary: &Path, path: &Path, seal: Seal) -> Result<()> {
    if Seal::of_file(path).is_ok_and(|old| old == seal) {
        return remove(temporary);
    }
    fs::rename(temporary, path).map_err(Error::io(path))?;
    sync_folder_of(path)
}

/// Puts bytes in the place of a file that may be there: whoever reads it finds the old ones or the new, also when the process
/// or the machine is stopped meanwhile.
///
/// # Errors
/// [`Error::Io`]; the file is as it was then.
pub fn replace_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    replace(path.as_ref(), |out| out.write_all(bytes))
}

/// A folder that comes into being with all that it holds.
pub(super) struct NewFolder {
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFolder {
    /// Prepares `path`, in a folder that is made where it is not there.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::File`] when there is one of that name with other things in it than one of this kind,
    /// which has the file `marked`.
    pub(super) fn create(path: &Path, marked: &str) -> Result<NewFolder> {
        let others = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if others && !path.join(marked).exists() {
            return Err(Error::file(
                path.display(),
                format_args!("has other files, and no {marked}"),
            ));
        }
        let temporary = temporary(path);
        remove(&temporary)?;
        fs::create_dir_all(&temporary).map_err(Error::io(&temporary))?;
        Ok(NewFolder { temporary, path: path.to_owned() })
    }

    /// Writes one of its files. The name may have folders in it.
    pub(super) fn write(
        &self,
        name: &str,
        content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<Seal> {
        write_below(&self.temporary, name, content)
    }

    /// Where its files are written meanwhile.
    pub(super) fn inside(&self, name: &str) -> PathBuf {
        self.temporary.join(name)
    }

    /// Gives the folder its name. One of that name makes way in the moment before, and is gone when the new one is there.
    pub(super) fn publish(self) -> Result<()> {
        sync_folder(&self.temporary)?;
        let old = out_of_the_way(&self.path)?;
        if let Err(error) = fs::rename(&self.temporary, &self.path) {
            if let Some(old) = old {
                fs::rename(&old, &self.path).map_err(Error::io(&old))?;
            }
            return Err(Error::io(&self.path)(error));
        }
        sync_folder_of(&self.path)?;
        old.map_or(Ok(()), |old| remove(&old))
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // Once it is published, there is nothing under that name.
        let _ = remove(&self.temporary);
    }
}

/// Files that come into a folder once all of them are written.
pub(super) struct NewFiles {
    folder: PathBuf,
    /// Where they are meanwhile.
    stage: PathBuf,
    written: Vec<(String, Seal)>,
}

impl NewFiles {
    /// Prepares files of `folder`, which is made with them where it is not there.
    pub(super) fn create(folder: &Path) -> Result<NewFiles> {
        let stage = match folder.is_dir() {
            true => temporary(&folder.join("files")),
            false => temporary(folder),
        };
        remove(&stage)?;
        fs::create_dir_all(&stage).map_err(Error::io(&stage))?;
        Ok(NewFiles { folder: folder.to_owned(), stage, written: Vec::new() })
    }

    /// Writes one of them. Its name may have folders in it.
    pub(super) fn write(
        &mut self,
        name: &str,
        content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<()> {
        self.written.push((name.to_owned(), write_below(&self.stage, name, content)?));
        Ok(())
    }

    /// Gives them their names, in the order in which they were written.
    pub(super) fn publish(self) -> Result<()> {
        if !self.folder.exists() {
            sync_folder(&self.stage)?;
            fs::rename(&self.stage, &self.folder).map_err(Error::io(&self.folder))?;
            return sync_folder_of(&self.folder);
        }
        for (name, seal) in &self.written {
            let path = self.folder.join(name);
            make_folder_of(&path)?;
            settle(&self.stage.join(name), &path, *seal)?;
        }
        Ok(())
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        // Nothing is left there when all have their names; what went wrong else is told.
        let _ = remove(&self.stage);
    }
}

/// Writes a file into a folder that nobody reads yet, or into one in that. The names of `folder` itself are brought to the disk
/// when all are there.
fn write_below(
    folder: &Path,
    name: &str,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<Seal> {
    let path = folder.join(name);
    make_folder_of(&path)?;
    let seal = write(&path, content)?;
    if path.parent() != Some(folder) {
        sync_folder_of(&path)?;
    }
    Ok(seal)
}

/// Makes the folder that a file comes into, where it is not there, down to the disk.
fn make_folder_of(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) else { return Ok(()) };
    make_folder_of(folder)?;
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    sync_folder_of(folder)
}

/// Removes a folder such that it is never there in part.
pub(super) fn retire(path: &Path) -> Result<()> {
    out_of_the_way(path)?.map_or(Ok(()), |old| remove(&old))
}

/// Gives a folder that is there a temporary name, and returns that.
fn out_of_the_way(path: &Path) -> Result<Option<PathBuf>> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let away = path.with_file_name(format!("{TEMPORARY}old-{name}"));
    remove(&away)?;
    fs::rename(path, &away).map_err(Error::io(path))?;
    Ok(Some(away))
}

/// Removes what a process that was stopped has left in `folder`.
pub(super) fn sweep(folder: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{TEMPORARY}{name}"))
}

fn remove(path: &Path) -> Result<()> {
    let done = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    done.map_err(Error::io(path))
}

fn sync_folder_of(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Names are on the disk only when their folder is.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io(folder))
}

/// A folder cannot be opened as a file here.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}

/// A tensor to be written.
pub(super) struct Numbers<'a> {
    pub(super) name: String,
    pub(super) shape: &'a [usize],
    /// As safetensors call the type.
    pub(super) dtype: String,
    /// Bytes of all its numbers.
    pub(super) bytes: u64,
    /// Writes them, little-endian and row-major.
    pub(super) write: WriteNumbers<'a>,
}

/// Writes the numbers of a tensor.
pub(super) type WriteNumbers<'a> = Box<dyn Fn(&mut dyn Write) -> std::io::Result<()> + 'a>;

impl<'a> Numbers<'a> {
    pub(super) fn f32(name: String, shape: &'a [usize], values: &'a [f32]) -> Numbers<'a> {
        let write = move |out: &mut dyn Write| {
            let mut bytes = [0; PIECE];
            for piece in values.chunks(PIECE / 4) {
                for (bytes, x) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(piece) {
                    *bytes = x.to_le_bytes();
                }
                out.write_all(&bytes[..4 * piece.len()])?;
            }
            Ok(())
        };
        let bytes = size_of_val(values) as u64;
        Numbers { name, shape, dtype: "F32".to_owned(), bytes, write: Box::new(write) }
    }
}

/// Writes a safetensors file, tensor by tensor.
pub(super) fn write_tensors(out: &mut dyn Write, tensors: &[Numbers<'_>]) -> std::io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut end = 0_u64;
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes;
        let info = json!({
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        header.insert(tensor.name.clone(), info);
    }
    let mut header = Value::Object(header).to_string();
    // The data begins at a multiple of 8 bytes.
    let padding = header.len().next_multiple_of(8) - header.len();
    header.extend(std::iter::repeat_n(' ', padding));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    tensors.iter().try_for_each(|tensor| (tensor.write)(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Checkpoint;

    /// A folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrow-{name}-{}", std::process::id()));
        remove(&folder).unwrap();
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn tensors_are_read_as_they_were_written() {
        let numbers: Vec<f32> = (0..40_000).map(|i| i as f32 * 0.1 - 7.0).collect();
        let tensors = [
            Numbers::f32("b".to_owned(), &[200, 100], &numbers[..20_000]),
            Numbers::f32("a".to_owned(), &[20_000], &numbers[20_000..]),
            Numbers::f32("none".to_owned(), &[0, 3], &[]),
        ];
        let mut bytes = Vec::new();
        write_tensors(&mut bytes, &tensors).unwrap();
        let checkpoint = Checkpoint::from_bytes(&bytes).unwrap();
        let mut read = vec![0.0; 20_000];
        for (name, shape, expected) in
            [("b", vec![200, 100], &numbers[..20_000]), ("a", vec![20_000], &numbers[20_000..])]
        {
            let tensor = &checkpoint.tensors[name];
            assert_eq!(tensor.shape, shape);
            checkpoint.read(tensor, 0, &mut read, &mut [0; 4096]).unwrap();
            assert_eq!(read, expected);
        }
        assert_eq!(checkpoint.tensors["none"].shape, [0, 3]);
    }

    fn seal(bytes: &[u8]) -> Seal {
        let mut seal = Seal::EMPTY;
        seal.add(bytes);
        seal
    }

    #[test]
    fn a_seal_shows_every_change_of_a_byte() {
        let folder = folder("seal");
        let (path, bytes) = (folder.join("file"), (0..=255).collect::<Vec<u8>>());
        let written = write(&path, |out| {
            out.write_all(&bytes[..100])?;
            out.write_all(&bytes[100..])
        });
        assert_eq!(written.unwrap(), seal(&bytes));
        assert_eq!(Seal::of_file(&path).unwrap(), seal(&bytes));
        for index in 0..bytes.len() {
            let mut other = bytes.clone();
            other[index] ^= 1 << (index % 8);
            assert_ne!(seal(&other), seal(&bytes));
        }
        assert_ne!(seal(&bytes[1..]), seal(&bytes));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_is_there_when_it_is_complete() {
        let parent = folder("new-folder");
        let path = parent.join("inner/one");
        let new = NewFolder::create(&path, "a").unwrap();
        write(&new.inside("a"), |out| out.write_all(b"1")).unwrap();
        assert!(!path.exists());
        new.publish().unwrap();
        assert_eq!(fs::read(path.join("a")).unwrap(), b"1");
        // The same again, in its place; what is given up leaves nothing behind.
        let new = NewFolder::create(&path, "a").unwrap();
        write(&new.inside("b"), |out| out.write_all(b"2")).unwrap();
        new.publish().unwrap();
        assert!(!path.join("a").exists() && path.join("b").exists());
        assert_eq!(fs::read_dir(parent.join("inner")).unwrap().count(), 1);
        // A new one that cannot have its name leaves the old one.
        fs::create_dir(path.join("x")).unwrap();
        let new = NewFolder { temporary: path.join("x"), path: path.clone() };
        assert!(matches!(new.publish(), Err(Error::Io { .. })));
        assert!(path.join("b").exists());
        // What is no such folder is left alone.
        assert!(matches!(NewFolder::create(&path, "a"), Err(Error::File { .. })));
        assert!(path.join("b").exists());
        drop(NewFolder::create(&parent.join("inner/two"), "a").unwrap());
        assert_eq!(fs::read_dir(parent.join("inner")).unwrap().count(), 1);
        // A process that is stopped cannot tidy up.
        fs::create_dir(temporary(&parent.join("inner/three"))).unwrap();
        assert_eq!(fs::read_dir(parent.join("inner")).unwrap().count(), 2);
        sweep(&parent.join("inner")).unwrap();
        assert_eq!(fs::read_dir(parent.join("inner")).unwrap().count(), 1);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn files_come_together_or_not_at_all() {
        let parent = folder("new-files");
        let folder = parent.join("inner");
        let stop = |_: &mut dyn Write| Err(std::io::Error::other("stop"));
        let mut files = NewFiles::create(&folder).unwrap();
        files.write("a", |out| out.write_all(b"1")).unwrap();
        assert!(files.write("b", stop).is_err());
        drop(files);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
        let mut files = NewFiles::create(&folder).unwrap();
        files.write("a", |out| out.write_all(b"1")).unwrap();
        files.write("b/c", |out| out.write_all(b"2")).unwrap();
        assert!(!folder.exists());
        files.publish().unwrap();
        assert_eq!(fs::read(folder.join("b/c")).unwrap(), b"2");
        // Into a folder that is there, beside what it has.
        let mut files = NewFiles::create(&folder).unwrap();
        files.write("a", |out| out.write_all(b"3")).unwrap();
        assert!(files.write("b/c", stop).is_err());
        drop(files);
        assert_eq!(fs::read(folder.join("a")).unwrap(), b"1");
        let mut files = NewFiles::create(&folder).unwrap();
        files.write("a", |out| out.write_all(b"3")).unwrap();
        files.publish().unwrap();
        assert_eq!(fs::read(folder.join("a")).unwrap(), b"3");
        assert_eq!(fs::read(folder.join("b/c")).unwrap(), b"2");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_failed_replacement_keeps_the_old_file() {
        let folder = folder("replace");
        let path = folder.join("file");
        replace_file(&path, b"old").unwrap();
        let failed = replace(&path, |out| {
            out.write_all(b"ne")?;
            Err(std::io::Error::other("stop"))
        });
        assert!(matches!(failed, Err(Error::Io { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        replace_file(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
