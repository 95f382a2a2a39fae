/* A cache inside one's own program, from C: two files as SSDs, one as the disk. `cargo xtask capi` compiles and runs it. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "headpond.h"

enum { SIZE = 64 << 20, MINUTE_MS = 60000, AT = 1 << 20 };

/* Ends the program where a call failed, with what the library says about it. */
static void must(const char *what, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %s\n%s\n", what, strerror(-result), headpond_last_error());
    exit(1);
}

static void make_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, SIZE) != 0 || close(file) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int count, char **arguments)
{
    const char *const ssds[] = {"ssd0", "ssd1"};
    static char data[8192], read_back[8192];
    headpond_pool pool;
    headpond_volume volume;

    if (count != 2 || chdir(arguments[1]) != 0) {
        fprintf(stderr, "Name a folder for the files.\n");
        return 1;
    }
    make_file("ssd0");
    make_file("ssd1");
    make_file("disk");

    must("create", headpond_pool_create("tank", ssds, 2, "state"));
    must("open", headpond_pool_open(ssds, 2, "state", &pool));
    must("attach", headpond_volume_attach(pool, "home", "disk", "write-back", &volume));

    memset(data, 0x5a, sizeof data);
    must("write", headpond_write(volume, data, sizeof data, AT));
    must("flush", headpond_flush(volume));
    must("read", headpond_read(volume, read_back, sizeof read_back, AT));
    if (memcmp(data, read_back, sizeof data) != 0) {
        fprintf(stderr, "what was read is not what was written\n");
        return 1;
    }
    must("discard", headpond_discard(volume, 4096, 0));

    /* Detached, the disk has everything, and the handle is of nothing. */
    must("detach", headpond_volume_detach(volume, MINUTE_MS));
    if (headpond_write(volume, data, sizeof data, 0) != -EBADF) {
        fprintf(stderr, "a volume that is detached was written to\n");
        return 1;
    }
    printf("after detach: %s\n", headpond_last_error());
    must("close", headpond_pool_close(pool, MINUTE_MS));
    return 0;
}
