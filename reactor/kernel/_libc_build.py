"""Generates `_libc_ffi.py`, the compact form of the C declarations that `libc` calls through cffi.

Run it as a module (`python -m reactor.kernel._libc_build`) after a change here; a test holds the generated
file to these declarations. The daemon imports only that: parsing C declarations at start would bring in
pycparser, which costs 6 MiB of memory and 40 ms where the generated module costs 0.3 MiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cffi

DECLARATIONS: Final = """
int mlockall(int flags);
int munlockall(void);
int malloc_trim(size_t pad);
int inotify_init1(int flags);
int inotify_add_watch(int fd, const char *pathname, uint32_t mask);
int inotify_rm_watch(int fd, int number);
int setns(int fd, int nstype);
int capset(void *header, const void *data);
int prctl(int option, unsigned long, unsigned long, unsigned long, unsigned long);
ssize_t getdents64(int fd, void *entries, size_t size);
long syscall(long number, ...);
int statfs(const char *path, void *found);
int posix_spawn_file_actions_init(void *actions);
int posix_spawn_file_actions_destroy(void *actions);
int posix_spawn_file_actions_adddup2(void *actions, int fd, int new_fd);
int posix_spawn_file_actions_addopen(void *actions, int fd, const char *path, int flags, unsigned int mode);
int posix_spawn(int *pid, const char *path, const void *actions, const void *attributes, char *const argv[],
                char *const envp[]);
"""
GENERATED: Final = Path(__file__).with_name("_libc_ffi.py")


def generate(path: Path = GENERATED) -> None:
    """Write the module for the declarations to `path`."""
    ffi = cffi.FFI()
    ffi.set_source(
        "reactor.kernel._libc_ffi", None
    )  # None: ABI mode, no C compiler, nothing machine-specific
    ffi.cdef(DECLARATIONS)
    ffi.emit_python_code(str(path))


if __name__ == "__main__":
    generate()
