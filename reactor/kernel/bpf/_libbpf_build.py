"""Generates `_libbpf_ffi.py`, the compact form of libbpf's declarations that `bpf` calls through cffi.

As `_libc_build`: run it as a module after a change here; a test holds the generated file to this.
Source: libbpf.h and bpf.h of libbpf 1.0, whose interface every later 1.x keeps (the soname is libbpf.so.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cffi

DECLARATIONS: Final = """
struct bpf_object; struct bpf_program; struct bpf_map; struct bpf_link;
typedef int (*libbpf_print_fn_t)(int level, const char *format, void *arguments);
libbpf_print_fn_t libbpf_set_print(libbpf_print_fn_t print);
struct bpf_object *bpf_object__open_mem(const void *bytes, size_t size, const void *options);
int bpf_object__load(struct bpf_object *object);
void bpf_object__close(struct bpf_object *object);
struct bpf_program *bpf_object__next_program(const struct bpf_object *object, struct bpf_program *program);
struct bpf_program *bpf_object__find_program_by_name(const struct bpf_object *object, const char *name);
const char *bpf_program__name(const struct bpf_program *program);
const char *bpf_program__section_name(const struct bpf_program *program);
int bpf_program__fd(const struct bpf_program *program);
struct bpf_link *bpf_program__attach(const struct bpf_program *program);
struct bpf_link *bpf_program__attach_iter(const struct bpf_program *program, const void *options);
int bpf_link__fd(const struct bpf_link *link);
int bpf_link__destroy(struct bpf_link *link);
int bpf_iter_create(int link_fd);
struct bpf_map *bpf_object__find_map_by_name(const struct bpf_object *object, const char *name);
int bpf_map__fd(const struct bpf_map *map);
unsigned int bpf_map__max_entries(const struct bpf_map *map);
int bpf_map__reuse_fd(struct bpf_map *map, int fd);
int bpf_map_update_elem(int fd, const void *key, const void *value, unsigned long long flags);
int bpf_map_lookup_elem(int fd, const void *key, void *value);
int bpf_map_delete_elem(int fd, const void *key);
int bpf_map_get_next_key(int fd, const void *key, void *next_key);
int bpf_obj_get(const char *path);
int bpf_obj_get_info_by_fd(int fd, void *info, unsigned int *size);
struct map_info { unsigned int type, id, key_size, value_size, max_entries, flags; };
int bpf_prog_test_run_opts(int fd, void *options);
struct open_options {
    size_t sz;
    const char *object_name;
    _Bool relaxed_maps;
    const char *pin_root_path;
    unsigned int unused;
    const char *kconfig;
    const char *btf_custom_path;
    char *kernel_log_buf;
    size_t kernel_log_size;
    unsigned int kernel_log_level;
};
struct iter_options { size_t sz; const void *link_info; unsigned int link_info_len; };
struct cgroup_link_info { unsigned int order; unsigned int cgroup_fd; unsigned long long cgroup_id; };
struct test_run_options {
    size_t sz;
    const void *data_in; void *data_out; unsigned int data_size_in; unsigned int data_size_out;
    const void *ctx_in; void *ctx_out; unsigned int ctx_size_in; unsigned int ctx_size_out;
    unsigned int retval; int repeat; unsigned int duration; unsigned int flags; unsigned int cpu;
    unsigned int batch_size;
};
int mallopt(int parameter, int value);
int vsnprintf(char *text, size_t size, const char *format, void *arguments);
"""
GENERATED: Final = Path(__file__).with_name("_libbpf_ffi.py")


def generate(path: Path = GENERATED) -> None:
    """Write the module for the declarations to `path`."""
    ffi = cffi.FFI()
    ffi.set_source("reactor.kernel.bpf._libbpf_ffi", None)  # None: ABI mode, no C compiler
    ffi.cdef(DECLARATIONS)
    ffi.emit_python_code(str(path))


if __name__ == "__main__":
    generate()
