#!/usr/bin/env python3
"""How long a GPU waits for its input: ResNet-50 fed by PyTorch's DataLoader, and by caju.

usage: experiments/gpu/run.py [--photos 8000] [--batch 256] [--seconds 20] [--rounds 2] [--keep RESULT.json]

Needs a CUDA GPU, PyTorch, torchvision and the package (`pip install '.[torch]'`). All inputs deliver uint8 images of 224 x 224, which the
GPU normalises. The table goes to results/README.md, the figures to data/gpu/result.json.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from processes import cpu_s  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARM_BATCHES, CLASSES = 12, 1000
WAYS = {"none": "none: the same batch again and again", "torch": "PyTorch's DataLoader, all cores",
        "caju": "caju, everything computed", "cached": "caju, decoded images stored"}
# The photos lie in a folder for each class: c000, c001, ...
LABEL = "CAST(substr(label, 2) AS bigint)"
CROP = "random_flip(random_resized_crop({}, 224, 224))"


# ---------------------------------------------------------------- inputs: endless (images of uint8 with channels last, labels)
def of_none():
    images = torch.randint(0, 256, (args.batch, 224, 224, 3), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, CLASSES, (args.batch,), device="cuda")
    while True:
        yield images, labels


def of_torch():
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision import datasets, transforms

    work = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
    folder = datasets.ImageFolder(args.data / "photos", work)
    sampler = RandomSampler(folder, replacement=True, num_samples=args.batch * 100_000)
    loader = DataLoader(folder, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=True, prefetch_factor=4)
    for images, labels in loader:
        yield images.cuda(non_blocking=True).permute(0, 2, 3, 1), labels.cuda(non_blocking=True)


def of_caju(stored):
    import caju

    rows = caju.read_images(f"{args.data}/photos/**/*.jpg")
    if stored:
        rows = rows.map(image="resize_shorter(decode_image(image), 256)", label=LABEL).cache("decoded").repeat(100_000)
        rows = rows.with_columns(image=CROP.format("image"))
    else:
        rows = rows.repeat(100_000).map(image=CROP.format("decode_image(image)"), label=LABEL)
    for batch in rows.shuffle(2000).batch(args.batch).prefetch(4).torch(pin_memory=True):
        yield batch["image"].cuda(non_blocking=True), batch["label"].cuda(non_blocking=True)


# ---------------------------------------------------------------- training
class Gpu:
    """The share of the time in which the GPU ran kernels, as `nvidia-smi` reports it, sampled 20 times a second."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.read = lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        self.seen, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def sample(self):
        while not self.over.wait(0.05):
            self.seen.append(self.read())

    def mean(self):
        self.over.set()
        self.thread.join()
        return statistics.mean(self.seen)


def used_cpu_s():
    """CPU seconds of this process and its living children."""
    children = [file.read_text().split() for file in pathlib.Path("/proc/self/task").glob("*/children")]
    return sum(cpu_s(pid) or 0 for pid in ["self", *sum(children, [])])


def trainer():
    """A function that trains on one batch."""
    from torchvision.models import resnet50

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = resnet50(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    mean = torch.tensor([123.675, 116.28, 103.53], device="cuda")
    deviation = torch.tensor([58.395, 57.12, 57.375], device="cuda")

    def step(images, labels):
        # Channels come last in memory, which is what the GPU's convolutions want.
        images = ((images.float() - mean) / deviation).permute(0, 3, 1, 2)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels % CLASSES)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def measure(way):
    """Trains for --seconds, and says how fast and how long the loop waited."""
    batches = {"none": of_none, "torch": of_torch, "caju": lambda: of_caju(False), "cached": lambda: of_caju(True)}[way]()
    step, asked = trainer(), time.perf_counter()
    step(*next(batches))
    torch.cuda.synchronize()
    first = time.perf_counter() - asked
    for _ in range(WARM_BATCHES):
        step(*next(batches))
    torch.cuda.synchronize()
    gpu, cpu, began, waited, n = Gpu(), used_cpu_s(), time.perf_counter(), 0.0, 0
    while time.perf_counter() - began < args.seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(*batch)
        n += 1
        # At most one step ahead of the GPU, so that waiting for rows is not hidden by a queue of kernels.
        torch.cuda.current_stream().synchronize()
    took = time.perf_counter() - began
    images = n * args.batch
    return dict(way=way, images_per_s=images / took, waits=waited / took, gpu=gpu.mean() / 100, cpu_ms_per_image=1e3 * (used_cpu_s() - cpu) / images,
                first_step_s=first)


# ---------------------------------------------------------------- table
def table(result):
    lines = ["# Last result", "", f"{result['machine']}. `run.py {result['options']}`, medians of {result['rounds']} rounds. {args.build}".rstrip(), "",
             "| input | images/s | of no input | the loop waits | GPU busy | CPU ms per image | first step, s |", "|---|---|---|---|---|---|---|"]
    of = lambda way, key: statistics.median(r[key] for r in result["runs"] if r["way"] == way)
    for way, name in WAYS.items():
        if not any(r["way"] == way for r in result["runs"]):
            continue
        rate = of(way, "images_per_s")
        lines.append(f"| {name} | {rate:,.0f} | {rate / of('none', 'images_per_s'):.0%} | {of(way, 'waits'):.0%} | {of(way, 'gpu'):.0%} | "
                     f"{of(way, 'cpu_ms_per_image'):.2f} | {of(way, 'first_step_s'):.1f} |")
    return "\n".join([*lines, ""])


def main():
    results = HERE / "results"
    for folder in (results, args.data):
        folder.mkdir(parents=True, exist_ok=True)
    if args.keep:
        result = json.loads(args.keep.read_text())
    else:
        subprocess.run([sys.executable, "-m", "caju", "gen", "images", "--overwrite", "--out", args.data / "photos", "--count", str(args.photos), "--format",
                        "files", "--quiet"], check=True)
        runs = []
        for _ in range(args.rounds):
            for way in WAYS:
                # A process for each: workers and threads of the one before are gone.
                command = [sys.executable, __file__, "--one", way, "--batch", str(args.batch), "--seconds", str(args.seconds),
                           "--workers", str(args.workers), "--data", args.data]
                runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))
                print(json.dumps(runs[-1]), flush=True)
        machine = f"{torch.cuda.get_device_name()}, {len(os.sched_getaffinity(0))} cores, PyTorch {torch.__version__}, {time.strftime('%d %B %Y')}"
        options = f"--photos {args.photos} --batch {args.batch} --workers {args.workers} --seconds {args.seconds:g}"
        result = dict(machine=machine, options=options, rounds=args.rounds, runs=runs)
        (args.data / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (results / "README.md").write_text(table(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/gpu", help="folder of photos and figures")
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes of PyTorch's DataLoader")
    parser.add_argument("--seconds", type=float, default=20, help="of training, for each input")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", choices=WAYS, help="measure this input alone, and print it")
    parser.add_argument("--build", default="", help="a sentence about the build, for the table")
    parser.add_argument("--keep", type=pathlib.Path, help="make the table of this result, without a run")
    args = parser.parse_args()
    args.data = args.data.resolve()
    if not args.keep:
        import torch
    if args.one:
        print(json.dumps(measure(args.one)))
        os._exit(0)
    main()
