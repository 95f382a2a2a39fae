"""A single writer and several readers of one HDF5 file (SWMR), for some seconds.

Usage: swmr.py FILE SECONDS READERS

The writer appends 4 KiB to a dataset, flushes it, and makes the file durable; a reader refreshes the dataset and reads its end, then
waits 10 ms. Prints the appends and the looks in a second.
"""

import multiprocessing
import os
import sys
import time

import h5py
import numpy

ROW = 512  # float64 values: 4 KiB


def write(path, seconds, ready, over, appended):
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", (0, ROW), maxshape=(None, ROW), chunks=(1, ROW), dtype="f8")
        file.swmr_mode = True
        file.flush()
        descriptor = file.id.get_vfd_handle()
        os.fsync(descriptor)
        ready.set()
        row = numpy.arange(ROW, dtype="f8")
        rows, begun = 0, time.monotonic()
        while time.monotonic() - begun < seconds:
            data.resize(rows + 1, axis=0)
            data[rows] = row + rows
            data.flush()
            os.fsync(descriptor)
            rows += 1
        appended.value = rows / (time.monotonic() - begun)
        over.set()


def read(path, ready, over, looks):
    ready.wait()
    with h5py.File(path, "r", libver="latest", swmr=True) as file:
        data, count, begun = file["data"], 0, time.monotonic()
        while not over.is_set():
            data.refresh()
            rows = data.shape[0]
            if rows and data[rows - 1][0] != rows - 1:
                sys.exit("the last row is not as it was written")
            count += 1
            time.sleep(0.01)
        with looks.get_lock():
            looks.value += count / (time.monotonic() - begun)


def main():
    path, seconds, readers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    ready, over = multiprocessing.Event(), multiprocessing.Event()
    appended, looks = multiprocessing.Value("d", 0.0), multiprocessing.Value("d", 0.0)
    started = [multiprocessing.Process(target=write, args=(path, seconds, ready, over, appended))]
    started += [multiprocessing.Process(target=read, args=(path, ready, over, looks)) for _ in range(readers)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode != 0 for process in started):
        sys.exit("the writer or a reader failed")
    print("appends", appended.value)
    print("looks", looks.value)


main()
