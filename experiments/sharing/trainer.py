#!/usr/bin/env python3
"""A training job without a model: it takes a batch, adds up its values and waits as long as a step takes.

    trainer.py PIPELINE DISPATCHER JOB STEP_S REPORT

Writes what it got to REPORT: rows, the sum of their values, and its memory before the first batch.
"""

import json
import pathlib
import sys
import time

import caju
import numpy  # caju imports it with the first batch: its memory is not that of batches
from one_host import memory


def main():
    file, address, job, step_s, report = sys.argv[1:]
    dataset = caju.read_yaml(file).distribute(address, job_name=job, sharing="exact", policy="compute")
    before = memory("self")
    rows, total = 0, 0
    for batch in dataset:
        image = batch["image"]
        rows += len(image)
        total += int(image.sum(dtype=numpy.int64))
        time.sleep(float(step_s))
    pathlib.Path(report).write_text(json.dumps({"rows": rows, "total": total, "before": before}))


if __name__ == "__main__":
    main()
