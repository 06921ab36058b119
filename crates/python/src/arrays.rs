//! NumPy arrays over Arrow memory.
//!
//! NumPy is imported with the first batch, not with caju: a process that only describes pipelines need not pay for it.

use std::ffi::c_int;

use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API};
use numpy::{Element, PyArrayDescrMethods};
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};

/// Contiguous, aligned and not writeable: batches share memory with each other and with the engine.
const READ_ONLY: c_int = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_ALIGNED;

/// NumPy, once it is imported. The C interface may be used only after that: it panics where there is no NumPy.
pub(crate) struct NumPy {
    from_iter: Py<PyAny>,
    object: Py<PyAny>,
}

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// NumPy, imported if it has not been.
///
/// # Errors
/// `ImportError` if there is no NumPy.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<&'static NumPy> {
    NUMPY.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        Ok(NumPy {
            from_iter: numpy.getattr("fromiter")?.unbind(),
            object: numpy.getattr("object_")?.unbind(),
        })
    })
}

/// Arrow memory that NumPy arrays point into. It is the base object of the arrays, so it lives as long as they do.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Buffer {
    #[expect(dead_code, reason = "owns the memory")]
    memory: arrow_buffer::Buffer,
}

impl NumPy {
    /// A read-only array of `dims` over a buffer. Nothing is copied unless the buffer is not aligned.
    ///
    /// # Errors
    /// `SystemError` if the buffer holds fewer values than `dims` say, `MemoryError`.
    #[allow(unsafe_code, reason = "calls NumPy's constructor with a pointer into Arrow memory")]
    pub(crate) fn array<'py, T: Element>(
        &self,
        py: Python<'py>,
        dims: &[usize],
        buffer: &arrow_buffer::Buffer,
    ) -> PyResult<Bound<'py, PyAny>> {
        let width = size_of::<T>();
        let bytes = dims.iter().try_fold(width, |n, d| n.checked_mul(*d));
        if bytes.is_none_or(|n| n > buffer.len()) {
            return Err(PySystemError::new_err(format!(
                "{dims:?} values of {width} bytes do not fit a buffer of {} bytes",
                buffer.len()
            )));
        }
        let aligned = match buffer.as_ptr().cast::<T>().is_aligned() {
            true => buffer.clone(),
            false => arrow_buffer::Buffer::from_slice_ref(buffer.as_slice()),
        };
        let data = aligned.as_ptr().cast_mut().cast();
        let owner = Bound::new(py, Buffer { memory: aligned })?;
        let mut sizes: Vec<isize> = dims.iter().map(|d| d.cast_signed()).collect();
        let nd = c_int::try_from(dims.len()).map_err(|_| PySystemError::new_err("too many dimensions"))?;
        // SAFETY: NumPy is imported, as `self` exists. `data` points to at least the product of `dims` values (checked
        // above), aligned for `T`. The array is read-only and owns `owner`, which owns the memory. The constructor takes
        // the reference to the dtype, and `PyArray_SetBaseObject` that to `owner`, also when they fail.
        unsafe {
            let array = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyArray_Type),
                T::get_dtype(py).into_dtype_ptr(),
                nd,
                sizes.as_mut_ptr(),
                std::ptr::null_mut(),
                data,
                READ_ONLY,
                std::ptr::null_mut(),
            );
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.into_ptr()) < 0 {
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

    /// A masked array. `mask` is an array of booleans, true where the value is null.
    ///
    /// # Errors
    /// NumPy's own.
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

    /// The same memory as another dtype of the same width: integers as dates or durations.
    ///
    /// # Errors
    /// NumPy's own.
    pub(crate) fn view<'py>(&self, array: Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let dtype = PyString::new(array.py(), dtype);
        array.call_method1("view", (dtype,))
    }
}
