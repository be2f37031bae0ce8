// reflect: fold a number into [0, 1] with period 2.
#pragma once

#include <cmath>

#include "host_device.h"

namespace softrank {

// Every operation is exact: halving and doubling are, |x| - 2 floor(|x| / 2) is the remainder, and 2 - m loses nothing
// for 1 < m <= 2. NaN stays NaN, infinities give NaN.
template <typename T>
SOFTRANK_ROW T reflect_value(T x) {
  const T magnitude = x < T(0) ? -x : x;
  const T m = magnitude - T(2) * std::floor(magnitude * T(0.5));
  return m > T(1) ? T(2) - m : m + T(0);
}

}  // namespace softrank
