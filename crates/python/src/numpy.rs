//! NumPy arrays over Arrow memory, through NumPy's C interface.
//!
//! The interface is a table of functions that NumPy hands out at run time, at places that have been the same
//! since NumPy 1.7 and in 2; so nothing is linked, and NumPy is imported with the first batch, not with caju.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyList, PyString};

/// Places in NumPy's table.
const ARRAY_TYPE: usize = 2;
const NEW: usize = 93;
const SET_BASE_OBJECT: usize = 282;

/// Contiguous and aligned; not writeable: batches share memory with each other and with the engine.
const READ_ONLY: c_int = 0x0001 | 0x0100;

/// NumPy's numbers of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Kind {
    Bool = 0,
    Int8 = 1,
    UInt8 = 2,
    Int16 = 3,
    UInt16 = 4,
    Int32 = 5,
    UInt32 = 6,
    Int64 = if cfg!(windows) { 9 } else { 7 },
    UInt64 = if cfg!(windows) { 10 } else { 8 },
    Float32 = 11,
    Float64 = 12,
    Float16 = 23,
}

impl Kind {
    /// Bytes of one value, which is also its alignment.
    pub(crate) fn width(self) -> usize {
        match self {
            Kind::Bool | Kind::Int8 | Kind::UInt8 => 1,
            Kind::Int16 | Kind::UInt16 | Kind::Float16 => 2,
            Kind::Int32 | Kind::UInt32 | Kind::Float32 => 4,
            Kind::Int64 | Kind::UInt64 | Kind::Float64 => 8,
        }
    }
}

type New = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    c_int,
    *const isize,
    c_int,
    *const isize,
    *mut c_void,
    c_int,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// What of NumPy is used.
pub(crate) struct NumPy {
    array_type: NonNull<ffi::PyTypeObject>,
    new: New,
    set_base_object: SetBaseObject,
    from_iter: Py<PyAny>,
    object: Py<PyAny>,
}

// SAFETY: a pointer to a static type object and plain functions, used only while attached to the interpreter.
#[allow(unsafe_code, reason = "NumPy's table is valid for the life of the process, from every thread")]
unsafe impl Send for NumPy {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "as above")]
unsafe impl Sync for NumPy {}

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// NumPy, imported if it has not been.
///
/// # Errors
/// `ImportError` if there is no NumPy.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<&'static NumPy> {
    NUMPY.get_or_try_init(py, || load(py))
}

#[allow(unsafe_code, reason = "reads NumPy's table of functions")]
fn load(py: Python<'_>) -> PyResult<NumPy> {
    let numpy = py.import("numpy")?;
    // The module moved with NumPy 2.
    let multiarray = py.import("numpy._core.multiarray").or_else(|_| py.import("numpy.core.multiarray"))?;
    let capsule = multiarray.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
    let table = capsule.pointer_checked(None)?.cast::<*mut c_void>();
    // SAFETY: the capsule holds NumPy's table, which has these places in every version since 1.7; modules of
    // extensions are never unloaded.
    let (array_type, new, set_base_object) = unsafe {
        let at = |place: usize| table.add(place).read();
        (
            NonNull::new(at(ARRAY_TYPE).cast::<ffi::PyTypeObject>()),
            std::mem::transmute::<*mut c_void, Option<New>>(at(NEW)),
            std::mem::transmute::<*mut c_void, Option<SetBaseObject>>(at(SET_BASE_OBJECT)),
        )
    };
    let (Some(array_type), Some(new), Some(set_base_object)) = (array_type, new, set_base_object) else {
        return Err(PySystemError::new_err("NumPy's table of functions has holes"));
    };
    Ok(NumPy {
        array_type,
        new,
        set_base_object,
        from_iter: numpy.getattr("fromiter")?.unbind(),
        object: numpy.getattr("object_")?.unbind(),
    })
}

/// Memory of Arrow that Python objects point into, kept as long as they live.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Buffer(arrow_buffer::Buffer);

#[pymethods]
impl Buffer {
    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Its length in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.0.len()
    }
}

impl Buffer {
    pub(crate) fn new(buffer: arrow_buffer::Buffer) -> Self {
        Self(buffer)
    }
}

impl NumPy {
    /// An array of `dims` over a buffer, which must hold so many values; read-only, nothing is copied unless the
    /// buffer is not aligned.
    ///
    /// # Errors
    /// `SystemError` if the buffer is too short, `MemoryError`.
    #[allow(unsafe_code, reason = "calls NumPy's constructor with a pointer into Arrow memory")]
    pub(crate) fn array<'py>(
        &self,
        py: Python<'py>,
        kind: Kind,
        dims: &[usize],
        buffer: &arrow_buffer::Buffer,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = dims.iter().try_fold(kind.width(), |n, d| n.checked_mul(*d));
        if bytes.is_none_or(|n| n > buffer.len()) {
            return Err(PySystemError::new_err(format!(
                "{dims:?} values of {} bytes do not fit a buffer of {} bytes",
                kind.width(),
                buffer.len()
            )));
        }
        let aligned = match buffer.as_ptr().addr() % kind.width() {
            0 => buffer.clone(),
            _ => arrow_buffer::Buffer::from_slice_ref(buffer.as_slice()),
        };
        let data = aligned.as_ptr().cast_mut().cast::<c_void>();
        let owner = Bound::new(py, Buffer(aligned))?;
        let sizes: Vec<isize> = dims.iter().map(|d| d.cast_signed()).collect();
        let nd = c_int::try_from(dims.len()).map_err(|_| PySystemError::new_err("too many dimensions"))?;
        // SAFETY: `data` points to at least the product of `dims` values (checked above), aligned for the type;
        // the array may only be read, and holds `owner`, which holds the memory. `SetBaseObject` takes the
        // reference that `into_ptr` gives up, also when it fails.
        unsafe {
            let array = (self.new)(
                self.array_type.as_ptr(),
                nd,
                sizes.as_ptr(),
                kind as c_int,
                std::ptr::null(),
                data,
                0,
                READ_ONLY,
                std::ptr::null_mut(),
            );
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            if (self.set_base_object)(array.as_ptr(), owner.into_ptr()) < 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(array)
        }
    }

    /// A one-dimensional array of Python objects.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn objects<'py>(
        &self,
        py: Python<'py>,
        values: Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let count = values.len();
        self.from_iter.bind(py).call1((values, self.object.bind(py), count))
    }

    /// A masked array: `mask` is an array of booleans, true where there is no value.
    ///
    /// # Errors
    /// What NumPy says.
    pub(crate) fn masked<'py>(
        &self,
        py: Python<'py>,
        data: Bound<'py, PyAny>,
        mask: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = PyDict::new(py);
        arguments.set_item("mask", mask)?;
        py.import("numpy.ma")?.getattr("MaskedArray")?.call((data,), Some(&arguments))
    }

    /// The same values seen as dates or durations.
    ///
    /// # Errors
    /// What NumPy says.
    pub(crate) fn view<'py>(&self, array: Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let dtype = PyString::new(array.py(), dtype);
        array.call_method1("view", (dtype,))
    }
}
