// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Memory watch on the node itself where memory counts as MemAvailable: an object of its own, loaded only then. */
#define COUNT_MEM_AVAILABLE
#include "node.bpf.c"
