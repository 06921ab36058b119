"""Input data for machine learning: pipelines that workers compute and training jobs read.

>>> import caju
>>> ds = caju.range(10).map(x="id * 2").batch(4)
>>> for batch in ds:                     # dicts of NumPy arrays
...     print(batch["x"])
[0 2 4 6]
[ 8 10 12 14]
[16 18]
"""

from ._caju import __version__
from ._cluster import DispatcherServer, LocalCluster, WorkerServer, configure, start_dispatcher, start_worker
from ._dataset import Dataset
from ._errors import (
    AlreadyExists,
    CajuError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidPipeline,
    NotFound,
    NotPermitted,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from ._expr import Expr, col, fn, lit, sql
from ._fingerprint import code_fingerprint
from ._functions import rng
from ._iterator import DatasetIterator, Skipped, Stats
from ._memory import from_arrow, from_numpy
from ._save import Save, SaveProgress, load
from ._schema import Schema
from ._sources import (
    concatenate,
    from_dataset_id,
    from_yaml,
    range,
    read_arrow,
    read_csv,
    read_images,
    read_json,
    read_parquet,
    read_tfrecord,
    read_webdataset,
    read_yaml,
    sample_from_datasets,
    zip,
)
from ._stages import Quantiles, quantiles

__all__ = [
    "AlreadyExists",
    "CajuError",
    "Cancelled",
    "DataLoss",
    "Dataset",
    "DatasetIterator",
    "DeadlineExceeded",
    "DispatcherServer",
    "Expr",
    "FailedPrecondition",
    "InternalError",
    "InvalidPipeline",
    "LocalCluster",
    "NotFound",
    "NotPermitted",
    "Quantiles",
    "ResourceExhausted",
    "Save",
    "SaveProgress",
    "Schema",
    "Skipped",
    "Stats",
    "Unavailable",
    "Unimplemented",
    "WorkerServer",
    "__version__",
    "code_fingerprint",
    "col",
    "concatenate",
    "configure",
    "fn",
    "from_arrow",
    "from_dataset_id",
    "from_numpy",
    "from_yaml",
    "lit",
    "load",
    "quantiles",
    "range",
    "read_arrow",
    "read_csv",
    "read_images",
    "read_json",
    "read_parquet",
    "read_tfrecord",
    "read_webdataset",
    "read_yaml",
    "rng",
    "sample_from_datasets",
    "sql",
    "start_dispatcher",
    "start_worker",
    "zip",
]
