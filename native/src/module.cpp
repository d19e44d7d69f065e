#include "bind.h"

NB_MODULE(_native, m) {
  m.doc() = "Kernels that read packed keys and values where they lie.";
  quantkv::bind_format(m);
  quantkv::bind_attend(m);
  quantkv::bind_encode(m);
}
