// Facts: what is known of values that only the real card would know.
//
// A storage without a value may still have facts: bounds of all its elements, whether one may be NaN, and what they add
// up to. Without facts, values are presumed to be those of a healthy run: bools, integers of their type's range, finite
// numbers. Rules (fact_rules.cpp) carry facts through operators, nccl.cpp through collectives, and what a script reads is
// always a value that the facts allow. docs/virtual-gpu.md lists facts and rules.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

namespace sandtable {

struct Facts {
  at::ScalarType dtype = at::kFloat;
  double low = 0; // bounds of every element that is a number
  double high = 0;
  bool may_be_nan = false;
  std::optional<double> total; // the sum of all elements

  // What a healthy run has.
  static Facts presumed(at::ScalarType dtype);
  // Bounds computed from bounds, as elements of this type: rounded as they are, and presumed where it cannot hold them.
  static Facts within(double low, double high, at::ScalarType dtype);
  static Facts exactly(double value, at::ScalarType dtype, std::optional<int64_t> numel = std::nullopt);

  bool is_presumed() const;
  bool is_finite() const;
  bool is_zero() const { return !may_be_nan && low == 0 && high == 0; }
  bool is_nonzero() const { return may_be_nan ? false : low > 0 || high < 0; }
  // The element that a script reads: 1, or the nearest that the bounds allow; a bool is false if it may be.
  double typical(bool prefers_true = false) const;
};

constexpr double kLargest = 1.7976931348623157e308; // the bound of what is finite, and no more is known of

Facts either(const Facts& a, const Facts& b); // of elements, some of which are as `a` and some as `b`
Facts cast(const Facts& facts, at::ScalarType dtype);
Facts truth(const Facts& facts); // of bool(x)
Facts sum_of(const Facts& a, const Facts& b, at::ScalarType dtype); // of a + b, element by element
Facts largest_of(const Facts& a, const Facts& b, at::ScalarType dtype);
Facts smallest_of(const Facts& a, const Facts& b, at::ScalarType dtype);
Facts scaled(const Facts& facts, double factor, at::ScalarType dtype);

} // namespace sandtable
