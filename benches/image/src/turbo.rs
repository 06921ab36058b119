//! libjpeg-turbo through its TurboJPEG 3 interface, with default settings: accurate transform, smooth upsampling.

use caju_image::jpeg::Region;
use turbojpeg_sys as tj;

use crate::Outcome;

/// A decompressor.
pub struct Decompressor(tj::tjhandle);

/// A compressor.
pub struct Compressor(tj::tjhandle);

/// How an image is compressed.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// One of `TJSAMP_*`.
    pub subsampling: i32,
    /// 1 to 100.
    pub quality: i32,
    /// Progressive instead of sequential.
    pub progressive: bool,
    /// Rows of MCUs between restart markers; 0 for none.
    pub restart_rows: i32,
    /// Huffman tables made for the image.
    pub optimize: bool,
}

fn parameter(p: tj::TJPARAM) -> Outcome<i32> {
    Ok(i32::try_from(p)?)
}

fn check(handle: tj::tjhandle, code: i32) -> Outcome<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the handle is valid, and the text is a C string inside it.
    let text = unsafe { std::ffi::CStr::from_ptr(tj::tj3GetErrorStr(handle)) };
    Err(format!("libjpeg-turbo: {}", text.to_string_lossy()).into())
}

fn handle(kind: tj::TJINIT) -> Outcome<tj::tjhandle> {
    // SAFETY: no arguments but the kind.
    let handle = unsafe { tj::tj3Init(parameter(kind)?) };
    if handle.is_null() { Err("libjpeg-turbo cannot be initialised".into()) } else { Ok(handle) }
}

impl Decompressor {
    /// A new one.
    pub fn new() -> Outcome<Self> {
        handle(tj::TJINIT_TJINIT_DECOMPRESS).map(Self)
    }

    /// Decodes the image at 1/`scale`, or the smallest part that holds the window and that the library can decode
    /// alone: it begins at a multiple of the width of an MCU. Gives the part; its RGB pixels begin `out`.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        window: Option<Region>,
        scale: usize,
        out: &mut Vec<u8>,
    ) -> Outcome<Region> {
        // SAFETY: `bytes` and `out` are as long as said, and the handle is ours.
        unsafe {
            check(self.0, tj::tj3DecompressHeader(self.0, bytes.as_ptr(), bytes.len() as _))?;
            let get = |p: tj::TJPARAM| -> Outcome<usize> {
                Ok(usize::try_from(tj::tj3Get(self.0, parameter(p)?))?)
            };
            let (width, height) = (get(tj::TJPARAM_TJPARAM_JPEGWIDTH)?, get(tj::TJPARAM_TJPARAM_JPEGHEIGHT)?);
            let factor = tj::tjscalingfactor { num: 1, denom: i32::try_from(scale)? };
            check(self.0, tj::tj3SetScalingFactor(self.0, factor))?;
            let mut part = Region { y: 0, x: 0, h: height.div_ceil(scale), w: width.div_ceil(scale) };
            let mut crop = tj::tjregion { x: 0, y: 0, w: 0, h: 0 };
            if let Some(r) = window {
                let mcu =
                    match tj::TJSAMP::try_from(tj::tj3Get(self.0, parameter(tj::TJPARAM_TJPARAM_SUBSAMP)?)) {
                        Ok(tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420) => 16,
                        Ok(tj::TJSAMP_TJSAMP_411) => 32,
                        _ => 8,
                    };
                let x = r.x - r.x % (mcu / scale).max(1);
                part = Region { y: r.y, x, h: r.h, w: r.x + r.w - x };
                crop = tj::tjregion {
                    x: i32::try_from(part.x)?,
                    y: i32::try_from(part.y)?,
                    w: i32::try_from(part.w)?,
                    h: i32::try_from(part.h)?,
                };
            }
            check(self.0, tj::tj3SetCroppingRegion(self.0, crop))?;
            let len = part.h * part.w * 3;
            if out.len() < len {
                out.resize(len, 0);
            }
            let rgb = i32::try_from(tj::TJPF_TJPF_RGB)?;
            let code = tj::tj3Decompress8(self.0, bytes.as_ptr(), bytes.len() as _, out.as_mut_ptr(), 0, rgb);
            check(self.0, code)?;
            Ok(part)
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        unsafe { tj::tj3Destroy(self.0) };
    }
}

impl Compressor {
    /// A new one.
    pub fn new() -> Outcome<Self> {
        handle(tj::TJINIT_TJINIT_COMPRESS).map(Self)
    }

    /// Compresses RGB pixels.
    pub fn encode(&mut self, pixels: &[u8], width: usize, height: usize, s: Settings) -> Outcome<Vec<u8>> {
        assert_eq!(pixels.len(), width * height * 3, "RGB pixels");
        let (mut data, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the pixels are as many as said; the library allocates the result, which is copied and freed.
        unsafe {
            for (p, v) in [
                (tj::TJPARAM_TJPARAM_SUBSAMP, s.subsampling),
                (tj::TJPARAM_TJPARAM_QUALITY, s.quality),
                (tj::TJPARAM_TJPARAM_PROGRESSIVE, i32::from(s.progressive)),
                (tj::TJPARAM_TJPARAM_RESTARTROWS, s.restart_rows),
                (tj::TJPARAM_TJPARAM_OPTIMIZE, i32::from(s.optimize)),
            ] {
                check(self.0, tj::tj3Set(self.0, parameter(p)?, v))?;
            }
            let (w, h) = (i32::try_from(width)?, i32::try_from(height)?);
            let rgb = i32::try_from(tj::TJPF_TJPF_RGB)?;
            let code = tj::tj3Compress8(self.0, pixels.as_ptr(), w, 0, h, rgb, &mut data, &mut size);
            let done = check(self.0, code);
            let bytes = if data.is_null() || done.is_err() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(data, size as usize).to_vec()
            };
            tj::tj3Free(data.cast());
            done.map(|()| bytes)
        }
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        unsafe { tj::tj3Destroy(self.0) };
    }
}
