#include "facts.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sandtable {
namespace {

struct Range {
  double low, high;
};

Range range_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return {0, 1};
    case at::kByte:
      return {0, 255};
    case at::kChar:
      return {-128, 127};
    case at::kShort:
      return {-32768, 32767};
    case at::kInt:
      return {-2147483648.0, 2147483647.0};
    case at::kUInt16:
      return {0, 65535};
    case at::kUInt32:
      return {0, 4294967295.0};
    case at::kUInt64:
      return {0, 18446744073709551615.0};
    case at::kLong:
      return {-9223372036854775808.0, 9223372036854775807.0};
    default:
      return {-kLargest, kLargest};
  }
}

bool is_whole(at::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

// Rounding is monotonic: a rounded bound bounds what was rounded.
double rounded(double bound, at::ScalarType dtype) {
  double magnitude = std::abs(bound);
  if (bound == 0 || magnitude >= kLargest)
    return bound;
  switch (dtype) {
    case at::kDouble:
      return bound;
    case at::kFloat:
      return std::isinf(static_cast<float>(bound)) ? std::copysign(kLargest, bound) : static_cast<float>(bound);
    case at::kHalf:
      return magnitude > 65504 ? std::copysign(kLargest, bound) : static_cast<float>(c10::Half(static_cast<float>(bound)));
    case at::kBFloat16:
      return static_cast<float>(c10::BFloat16(static_cast<float>(bound)));
    default:
      return std::copysign(kLargest, bound); // the smaller formats: the sign is all that is kept
  }
}

} // namespace

Facts Facts::presumed(at::ScalarType dtype) {
  Range range = range_of(dtype);
  return {dtype, range.low, range.high};
}

Facts Facts::within(double low, double high, at::ScalarType dtype) {
  Range range = range_of(dtype);
  if (std::isnan(low) || std::isnan(high) || (is_whole(dtype) && (low < range.low || high > range.high)))
    return presumed(dtype); // integers wrap around
  if (is_whole(dtype))
    return {dtype, low, high};
  return {dtype, rounded(low, dtype), rounded(high, dtype)};
}

Facts Facts::exactly(double value, at::ScalarType dtype, std::optional<int64_t> numel) {
  if (std::isnan(value))
    return {dtype, -kLargest, kLargest, true};
  Facts facts = within(value, value, dtype);
  if (numel && std::isfinite(value) && is_whole(dtype))
    facts.total = value * static_cast<double>(*numel);
  return facts;
}

bool Facts::is_presumed() const {
  Range range = range_of(dtype);
  return low == range.low && high == range.high && !may_be_nan && !total;
}

bool Facts::is_finite() const {
  return !may_be_nan && std::isfinite(low) && std::isfinite(high);
}

double Facts::typical(bool prefers_true) const {
  double wanted = dtype == at::kBool && !prefers_true ? 0 : 1;
  double value = std::min(std::max(wanted, low), high);
  if (!is_whole(dtype) && (value == low || value == high) && std::abs(value) >= kLargest)
    return std::isinf(value) ? value : 1;
  return value;
}

Facts either(const Facts& a, const Facts& b) {
  return {a.dtype, std::min(a.low, b.low), std::max(a.high, b.high), a.may_be_nan || b.may_be_nan};
}

Facts truth(const Facts& facts) {
  if (facts.is_zero())
    return Facts::exactly(0, at::kBool);
  if (facts.is_nonzero())
    return Facts::exactly(1, at::kBool);
  return Facts::presumed(at::kBool);
}

Facts cast(const Facts& facts, at::ScalarType dtype) {
  if (dtype == facts.dtype)
    return facts;
  if (dtype == at::kBool)
    return truth(facts);
  if (c10::isComplexType(dtype) || c10::isComplexType(facts.dtype))
    return Facts::presumed(dtype);
  if (is_whole(dtype) && !is_whole(facts.dtype)) {
    if (!facts.is_finite())
      return Facts::presumed(dtype);
    return Facts::within(std::trunc(facts.low), std::trunc(facts.high), dtype);
  }
  Facts converted = Facts::within(facts.low, facts.high, dtype);
  converted.may_be_nan = facts.may_be_nan;
  if (is_whole(dtype) && converted.low == facts.low && converted.high == facts.high)
    converted.total = facts.total; // nothing wrapped around
  return converted;
}

Facts sum_of(const Facts& a, const Facts& b, at::ScalarType dtype) {
  auto plus = [](double x, double y) {
    double sum = x + y;
    return std::isinf(sum) && !std::isinf(x) && !std::isinf(y) ? std::copysign(kLargest, sum) : sum;
  };
  Facts sum = Facts::within(plus(a.low, b.low), plus(a.high, b.high), dtype);
  // inf - inf
  sum.may_be_nan = a.may_be_nan || b.may_be_nan || std::isnan(a.low + b.low) || std::isnan(a.high + b.high) ||
      std::isnan(a.low + b.high) || std::isnan(a.high + b.low);
  if (sum.may_be_nan)
    sum.low = -INFINITY, sum.high = INFINITY;
  return sum;
}

Facts largest_of(const Facts& a, const Facts& b, at::ScalarType dtype) {
  Facts most = Facts::within(std::max(a.low, b.low), std::max(a.high, b.high), dtype);
  most.may_be_nan = a.may_be_nan || b.may_be_nan;
  return most;
}

Facts smallest_of(const Facts& a, const Facts& b, at::ScalarType dtype) {
  Facts least = Facts::within(std::min(a.low, b.low), std::min(a.high, b.high), dtype);
  least.may_be_nan = a.may_be_nan || b.may_be_nan;
  return least;
}

Facts scaled(const Facts& facts, double factor, at::ScalarType dtype) {
  if (factor == 0 && !facts.is_finite())
    return {dtype, -kLargest, kLargest, true};
  auto times = [](double bound, double by) {
    double product = bound == 0 || by == 0 ? 0 : bound * by;
    return std::isinf(product) && !std::isinf(bound) && !std::isinf(by) ? std::copysign(kLargest, product) : product;
  };
  double first = times(facts.low, factor), second = times(facts.high, factor);
  Facts product = Facts::within(std::min(first, second), std::max(first, second), dtype);
  product.may_be_nan = facts.may_be_nan;
  return product;
}

} // namespace sandtable
