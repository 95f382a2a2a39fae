/*
 * Headpond inside one's own program, from C. Link with the static library that `cargo xtask capi` builds.
 *
 * Threads. Every function may be called from any thread at any time, also on the same volume at once. A call blocks its
 * thread until it has its answer. One thread of each pool's own does all I/O. A process that forks goes on with the pool
 * in the parent alone.
 *
 * Values. Each function returns 0, or a negative errno; then headpond_last_error says, in words, what happened, what it
 * means for the data, and what to do next. Results are written only where the function returns 0.
 *   -EINVAL     it makes no sense: a NULL, an unknown mode, what is no name, a size of 0, a range outside the volume or not in
 *               multiples of its blocks
 *   -EBADF      the handle is of no pool or volume that is open
 *   -ENOENT     there is no such volume, or no such file
 *   -EEXIST     there is a volume of that name already
 *   -EBUSY      a cache device is in use by another process
 *   -EPERM      refused, since data could be lost, or since a backing device is in use; nothing was changed
 *   -EIO        tried, and failed
 *   -ENXIO      the volume is not served
 *   -ETIMEDOUT  it was not done within the time
 *   -ENOSYS     there is no io_uring to be had
 * and what the operating system says of a path.
 *
 * Handles are numbers, and no number is used twice: one whose pool is closed, or whose volume is detached, is answered with
 * -EBADF for ever. Handles of zeroes are of nothing.
 *
 * Durability. What headpond_write has returned from is read by every later read, and survives the death of this process.
 * What headpond_flush has returned from survives a power cut, and the loss of one cache device. A pool that is not closed
 * before the process ends loses nothing of that; the next start reads the log.
 *
 * A bug of the engine ends the process, by abort. Nothing that was acknowledged is lost by it.
 */
#ifndef HEADPOND_H
#define HEADPOND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pool that this process serves. */
typedef struct { uint64_t id; } headpond_pool;

/* A volume of such a pool. */
typedef struct { uint64_t id; } headpond_volume;

/*
 * Makes a pool of this name that holds dirty data in two copies: on `count` devices, at least two, each a block device or a
 * file, with its witness in the folder `state`, which is made if it is missing. A device that holds anything known is refused.
 */
int headpond_pool_create(const char *name, const char *const *devices, size_t count, const char *state);

/*
 * Claims the devices of a pool, and the backing devices of its volumes where they were last, and begins to serve it. It waits
 * at most 10 s for a device that another process holds. A volume whose backing device is not there does not end the start.
 */
int headpond_pool_open(const char *const *devices, size_t count, const char *state, headpond_pool *pool);

/*
 * Ends cleanly within a time, so that the next start is warm. Dirty data stays on the cache devices. The handle, and those of
 * the pool's volumes, are of nothing afterwards, also where it fails: then a device does not answer, calls under way return
 * -EBADF and may still take effect, and the devices stay claimed until the process ends.
 */
int headpond_pool_close(headpond_pool pool, uint64_t within_ms);

/*
 * Makes a block device, or a file, a volume of the pool; what it holds stays, and is what the volume reads. Its path is UTF-8. The
 * mode is "write-back", "write-through", "write-around" or "pass-through".
 */
int headpond_volume_attach(headpond_pool pool, const char *name, const char *backing, const char *mode, headpond_volume *volume);

/*
 * Makes a volume without a backing device, of so many bytes, rounded up to whole blocks of 4 KiB: a small mirrored disk on the
 * cache devices alone, for journals and write-intent bitmaps. Twice its size is set aside there.
 */
int headpond_volume_create(headpond_pool pool, const char *name, uint64_t bytes, headpond_volume *volume);

/* A volume that is attached or created already, now or by an earlier process. */
int headpond_volume_open(headpond_pool pool, const char *name, headpond_volume *volume);

/* A volume's size in bytes, and the bytes of which offsets and lengths are multiples: 512, or 4096. Either may be NULL. */
int headpond_volume_size(headpond_volume volume, uint64_t *size, uint32_t *block);

/*
 * Writes all that is dirty to the backing device, and lets go of it: afterwards the device holds all that was written to the
 * volume, durably, and every handle of the volume is answered with -EBADF. Where it fails, or is not done within the time, the
 * volume is served on, and the handle stays good; it may be called again. Time is looked at twice a second.
 */
int headpond_volume_detach(headpond_volume volume, uint64_t within_ms);

/*
 * Deletes a volume that has no backing device, with all that is on it: that is nowhere else. Every handle of the volume is
 * answered with -EBADF afterwards. Where requests to it do not end within the time, or what the pool holds is not read by then,
 * as it is after an open, it is served on.
 */
int headpond_volume_delete(headpond_volume volume, uint64_t within_ms);

/* Lets go of this handle alone: the volume stays attached. */
int headpond_volume_close(headpond_volume volume);

/* Reads all of `bytes` at `offset`, or fails. Older data of the disk is never read in the place of newer. */
int headpond_read(headpond_volume volume, void *buffer, size_t bytes, uint64_t offset);

/* Writes all of `bytes` at `offset`; where it fails, each block may hold old or new data. The data is copied first. */
int headpond_write(headpond_volume volume, const void *data, size_t bytes, uint64_t offset);

/* Makes durable every write that returned before it was called. Where it fails, nothing may be assumed of them. */
int headpond_flush(headpond_volume volume);

/* Lets go of what is in a range, which reads as zeroes then, but for blocks of 4 KiB that it covers in part. */
int headpond_discard(headpond_volume volume, uint64_t bytes, uint64_t offset);

/*
 * What the last call of this thread that failed has to say; never NULL, and empty if none has failed. The text is good until
 * the next call that fails on this thread.
 */
const char *headpond_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
