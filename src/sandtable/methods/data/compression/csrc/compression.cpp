// Packing numbers into bits and back: what every compressor has to do to each component of a vector.
//
// Vectors are contiguous float32. The same input gives the same bytes on any machine and with any number of
// threads: random numbers come from the component's place and a key, not from a generator's history, and floating
// point is never contracted. Messages may begin at any address, so words are copied in and out of them.
//
// Plain C interface for ctypes; see kernels.py for what each argument is.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffffu;
constexpr uint32_t INFINITE = 0x7f800000u;
constexpr float SMALLEST_SCALE = 1e-30f;         // a bucket below it is sent as zeros: 1 / scale stays finite
constexpr int64_t SMALLEST_SHARE = int64_t(1) << 16;  // components worth a thread

uint32_t bits_of(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

float float_of(uint32_t word) {
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Calls body(part, begin, end) for `parts` ranges that together are [0, num_units), one per thread.
template <class Body>
void in_parts(int64_t num_units, int parts, Body body) {
  std::vector<std::thread> others;
  for (int part = 1; part < parts; ++part)
    others.emplace_back([=] { body(part, num_units * part / parts, num_units * (part + 1) / parts); });
  body(0, 0, num_units / parts);
  for (auto& other : others)
    other.join();
}

int parts_for(int64_t n, int threads) {
  return static_cast<int>(std::clamp<int64_t>(n / SMALLEST_SHARE, 1, std::max(threads, 1)));
}

// ---- bits ----

// Packs eight codes of B bits, one per byte, into 8 * B bits; and back.
template <int B>
uint64_t close_up(uint64_t x) {
  if constexpr (B == 8)
    return x;
  x = (x & 0x00ff00ff00ff00ffull) | ((x & 0xff00ff00ff00ff00ull) >> (8 - B));
  x = (x & 0x0000ffff0000ffffull) | ((x & 0xffff0000ffff0000ull) >> (16 - 2 * B));
  return (x & 0xffffffffull) | ((x >> 32) << (4 * B));
}

template <int B>
uint64_t spread(uint64_t x) {
  if constexpr (B == 8)
    return x;
  constexpr uint64_t four = (1ull << (4 * B)) - 1, two = (1ull << (2 * B)) - 1, one = (1ull << B) - 1;
  x = (x & four) | ((x >> (4 * B) & four) << 32);
  x = (x & (two | two << 32)) | ((x & ((two << (2 * B)) | (two << (2 * B)) << 32)) << (16 - 2 * B));
  constexpr uint64_t low = one * 0x0001000100010001ull;
  return (x & low) | ((x & (low << B)) << (8 - B));
}

template <int B>
void pack(const uint8_t* codes, int64_t n, uint8_t* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8, out += B) {
    uint64_t word = close_up<B>(load<uint64_t>(codes + i));
    std::memcpy(out, &word, B);
  }
  if (i < n) {
    uint8_t rest[8] = {};
    std::memcpy(rest, codes + i, n - i);
    uint64_t word = close_up<B>(load<uint64_t>(rest));
    std::memcpy(out, &word, ((n - i) * B + 7) / 8);
  }
}

template <int B>
void unpack(const uint8_t* in, int64_t n, uint8_t* codes) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8, in += B) {
    uint64_t word = 0;
    std::memcpy(&word, in, B);
    store(codes + i, spread<B>(word));
  }
  if (i < n) {
    uint64_t word = 0;
    std::memcpy(&word, in, ((n - i) * B + 7) / 8);
    word = spread<B>(word);
    std::memcpy(codes + i, &word, n - i);
  }
}

// Calls body(width) with the number of bits as a compile-time constant.
template <class Body>
void with_bits(int bits, Body body) {
  switch (bits) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    case 6: return body(std::integral_constant<int, 6>());
    case 7: return body(std::integral_constant<int, 7>());
    default: return body(std::integral_constant<int, 8>());
  }
}

// Any width up to 32, in one go from the first number to the last.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}
  void write(uint64_t value, int width) {
    held_ |= value << used_;
    used_ += width;
    if (used_ >= 32) {
      store(out_, static_cast<uint32_t>(held_));
      out_ += 4;
      held_ >>= 32;
      used_ -= 32;
    }
  }
  void finish() { std::memcpy(out_, &held_, (used_ + 7) / 8); }

 private:
  uint8_t* out_;
  uint64_t held_ = 0;
  int used_ = 0;
};

class BitReader {
 public:
  BitReader(const uint8_t* in, const uint8_t* end) : in_(in), end_(end) {}
  uint64_t read(int width) {
    if (used_ < width) {
      uint32_t word = 0;
      std::memcpy(&word, in_, std::min<int64_t>(4, end_ - in_));
      in_ += std::min<int64_t>(4, end_ - in_);
      held_ |= static_cast<uint64_t>(word) << used_;
      used_ += 32;
    }
    uint64_t value = held_ & ((1ull << width) - 1);
    held_ >>= width;
    used_ -= width;
    return value;
  }

 private:
  const uint8_t *in_, *end_;
  uint64_t held_ = 0;
  int used_ = 0;
};

// ---- chance ----

uint64_t mix64(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform in [0, 1) in steps of 2^-24, from a component's place and the message's key.
float chance(uint32_t place, uint32_t key_low, uint32_t key_high) {
  uint32_t x = place * 0x9e3779b9u + key_low;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) + key_high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<float>(static_cast<int32_t>(x >> 8)) * 0x1p-24f;
}

// ---- buckets ----

float largest(const float* v, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i)
    most = std::max(most, static_cast<int32_t>(bits_of(v[i]) & MAGNITUDE));
  return float_of(most);
}

// Sums in eight lanes, so that the order does not depend on the compiler.
template <class Term>
double sum_of(const float* v, int64_t n, Term term) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j)
      lanes[j] += term(v[i + j]);
  for (; i < n; ++i)
    lanes[i % 8] += term(v[i]);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

struct Quantiser {
  int64_t bucket;
  int bits;
  bool euclidean;  // the bucket's scale is its 2-norm rather than its largest magnitude
  bool nearest;    // round to the nearest level rather than at random
  uint64_t key;

  float scale_of(const float* v, int64_t n) const {
    if (!euclidean)
      return largest(v, n);
    double norm = std::sqrt(sum_of(v, n, [](float x) { return static_cast<double>(x) * x; }));
    return static_cast<float>(std::min<double>(norm, 3.4e38));
  }

  void round(const float* v, int64_t n, int64_t first, float scale, uint8_t* codes) const {
    const uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    if (nearest)
      round_up_by(v, n, scale, codes, [](int64_t) { return 0.5f; });
    else
      round_up_by(v, n, scale, codes, [=](int64_t i) { return chance(static_cast<uint32_t>(first + i), low, high); });
  }

  template <class Up>
  void round_up_by(const float* v, int64_t n, float scale, uint8_t* codes, Up up) const {
    const int levels = (1 << (bits - 1)) - 1, sign_bit = bits - 1;
    const float to_levels = static_cast<float>(levels) / scale;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t word = bits_of(v[i]);
      const int level = static_cast<int>(float_of(word & MAGNITUDE) * to_levels + up(i));
      codes[i] = static_cast<uint8_t>((level < levels ? level : levels) | static_cast<int>(word >> 31) << sign_bit);
    }
  }
};

int64_t buckets_of(int64_t n, int64_t bucket) { return (n + bucket - 1) / bucket; }

// Dense decoders give each bucket's components here: overwritten, or added with a weight.
void put(const float* values, int64_t n, float* out, float weight, bool adds) {
  if (adds)
    for (int64_t i = 0; i < n; ++i)
      out[i] += weight * values[i];
  else
    std::memcpy(out, values, n * sizeof(float));
}

// ---- selection ----

// Calls body for each magnitude (as its bits: they order like the numbers).
template <class Body>
void for_magnitudes(const float* v, int64_t begin, int64_t end, Body body) {
  for (int64_t i = begin; i < end; ++i)
    body(i, bits_of(v[i]) & MAGNITUDE);
}

// For few components: the same as below on one thread, with fewer bins (the leading 11 bits).
class SmallSelection {
 public:
  uint32_t kth_magnitude(const float* v, int64_t n, int64_t k) {
    std::fill(counts_.begin(), counts_.end(), 0);
    for (int64_t i = 0; i < n; ++i)
      ++counts_[(bits_of(v[i]) & MAGNITUDE) >> SHIFT];
    uint32_t bin = (bits_of(largest(v, n)) >> SHIFT) + 1;
    int64_t above = 0, here = 0;
    while (above + here < k) {
      above += here;
      here = counts_[--bin];
    }
    found_.clear();
    for_magnitudes(v, 0, n, [&](int64_t, uint32_t m) {
      if (m >> SHIFT == bin)
        found_.push_back(m);
    });
    std::nth_element(found_.begin(), found_.begin() + (k - above - 1), found_.end(), std::greater<>());
    return found_[k - above - 1];
  }

 private:
  static constexpr int SHIFT = 20;
  std::vector<uint32_t> counts_ = std::vector<uint32_t>(1 << 11), found_;
};

// The k-th largest magnitude: a histogram of the leading 12 bits finds the bin it lies in, and only that bin is
// sorted out.
uint32_t kth_magnitude(const float* v, int64_t n, int64_t k, int threads) {
  constexpr int SHIFT = 19, BINS = 1 << 12;
  if (n < 4 * BINS)
    return SmallSelection().kth_magnitude(v, n, k);
  const int parts = parts_for(n, threads);
  std::vector<std::vector<uint32_t>> counts(parts, std::vector<uint32_t>(2 * BINS));
  in_parts(n, parts, [&](int part, int64_t begin, int64_t end) {
    uint32_t *even = counts[part].data(), *odd = even + BINS;  // two, so that equal neighbours do not wait
    for (int64_t i = begin; i < end; ++i)
      ++(i & 1 ? odd : even)[(bits_of(v[i]) & MAGNITUDE) >> SHIFT];
  });
  int64_t above = 0, here = 0;
  uint32_t bin = BINS;
  while (above + here < k) {
    above += here;
    --bin;
    here = 0;
    for (const auto& count : counts)
      here += int64_t(count[bin]) + count[BINS + bin];
  }
  std::vector<std::vector<uint32_t>> found(parts);
  in_parts(n, parts, [&](int part, int64_t begin, int64_t end) {
    for_magnitudes(v, begin, end, [&](int64_t, uint32_t m) {
      if (m >> SHIFT == bin)
        found[part].push_back(m);
    });
  });
  std::vector<uint32_t> all;
  for (const auto& each : found)
    all.insert(all.end(), each.begin(), each.end());
  std::nth_element(all.begin(), all.begin() + (k - above - 1), all.end(), std::greater<>());
  return all[k - above - 1];
}

// Places of magnitudes above `limit`, and of the first `ties` equal to it; `out` has room for one more than there are.
int64_t emit(const float* v, int64_t begin, int64_t end, uint32_t limit, int64_t ties, int64_t* out) {
  int64_t count = 0;
  for_magnitudes(v, begin, end, [&](int64_t i, uint32_t m) {
    bool is_tie = m == limit && ties > 0;
    ties -= is_tie;
    out[count] = i;
    count += m > limit || is_tie;
  });
  return count;
}

int64_t count_above(const float* v, int64_t begin, int64_t end, uint32_t limit) {
  int64_t count = 0;
  for (int64_t block = begin; block < end; block += 1 << 14) {
    int32_t here = 0;
    for (int64_t i = block; i < std::min<int64_t>(block + (1 << 14), end); ++i)
      here += static_cast<int32_t>(bits_of(v[i]) & MAGNITUDE) > static_cast<int32_t>(limit);
    count += here;
  }
  return count;
}

}  // namespace

extern "C" {

// Returns the first place that is NaN or infinite, or -1.
int64_t sandtable_first_not_finite(const float* v, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += 4096) {
    int64_t end = std::min<int64_t>(begin + 4096, n);
    if (bits_of(largest(v + begin, end - begin)) < INFINITE)
      continue;
    for (int64_t i = begin; i < end; ++i)
      if ((bits_of(v[i]) & MAGNITUDE) >= INFINITE)
        return i;
  }
  return -1;
}

// Scales of the buckets, then the codes.
void sandtable_quantise(
    const float* v, int64_t n, int64_t bucket, int bits, int euclidean, int nearest, uint64_t key, uint8_t* out,
    int threads) {
  const Quantiser quantiser{bucket, bits, euclidean != 0, nearest != 0, mix64(key)};
  const int64_t num_buckets = buckets_of(n, bucket);
  uint8_t* packed = out + 4 * num_buckets;
  in_parts(num_buckets, parts_for(n, threads), [&](int, int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(bucket);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * bucket, size = std::min(bucket, n - first);
      float scale = quantiser.scale_of(v + first, size);
      if (scale < SMALLEST_SCALE) {
        scale = 0;
        std::fill(codes.begin(), codes.end(), 0);
      } else {
        quantiser.round(v + first, size, first, scale, codes.data());
      }
      store(out + 4 * b, scale);
      with_bits(bits, [&](auto width) { pack<width>(codes.data(), size, packed + first * bits / 8); });
    }
  });
}

void sandtable_restore(
    const uint8_t* in, int64_t n, int64_t bucket, int bits, float* out, float weight, int adds, int threads) {
  const int64_t num_buckets = buckets_of(n, bucket);
  const uint8_t* packed = in + 4 * num_buckets;
  const int mask = (1 << (bits - 1)) - 1;
  in_parts(num_buckets, parts_for(n, threads), [&](int, int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(bucket);
    std::vector<float> values(bucket);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * bucket, size = std::min(bucket, n - first);
      const float unit = load<float>(in + 4 * b) / static_cast<float>(mask);
      with_bits(bits, [&](auto width) { unpack<width>(packed + first * bits / 8, size, codes.data()); });
      for (int64_t i = 0; i < size; ++i) {
        const int code = codes[i];
        const uint32_t sign = static_cast<uint32_t>(code >> (bits - 1)) << 31;
        values[i] = float_of(bits_of(static_cast<float>(code & mask) * unit) ^ sign);
      }
      put(values.data(), size, out + first, weight, adds != 0);
    }
  });
}

// Means of the buckets' magnitudes, then one bit per component: 1 for a negative one.
void sandtable_signs(const float* v, int64_t n, int64_t bucket, uint8_t* out, int threads) {
  const int64_t num_buckets = buckets_of(n, bucket);
  uint8_t* packed = out + 4 * num_buckets;
  in_parts(num_buckets, parts_for(n, threads), [&](int, int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(bucket);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * bucket, size = std::min(bucket, n - first);
      double sum = sum_of(v + first, size, [](float x) { return static_cast<double>(std::fabs(x)); });
      store(out + 4 * b, static_cast<float>(sum / static_cast<double>(size)));
      for (int64_t i = 0; i < size; ++i)
        codes[i] = static_cast<uint8_t>(bits_of(v[first + i]) >> 31);
      pack<1>(codes.data(), size, packed + first / 8);
    }
  });
}

void sandtable_from_signs(
    const uint8_t* in, int64_t n, int64_t bucket, float* out, float weight, int adds, int threads) {
  const int64_t num_buckets = buckets_of(n, bucket);
  const uint8_t* packed = in + 4 * num_buckets;
  in_parts(num_buckets, parts_for(n, threads), [&](int, int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(bucket);
    std::vector<float> values(bucket);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * bucket, size = std::min(bucket, n - first);
      const uint32_t scale = load<uint32_t>(in + 4 * b);
      unpack<1>(packed + first / 8, size, codes.data());
      for (int64_t i = 0; i < size; ++i)
        values[i] = float_of(scale ^ static_cast<uint32_t>(codes[i]) << 31);
      put(values.data(), size, out + first, weight, adds != 0);
    }
  });
}

// The k-th largest magnitude.
float sandtable_kth_magnitude(const float* v, int64_t n, int64_t k, int threads) {
  return float_of(kth_magnitude(v, n, k, threads));
}

// Places of the k largest magnitudes, ascending; of equal ones the first. `out` has room for k + 1.
void sandtable_top_k(const float* v, int64_t n, int64_t k, int64_t* out, int threads) {
  const uint32_t limit = kth_magnitude(v, n, k, threads);
  const int parts = parts_for(n, threads);
  if (parts == 1) {
    emit(v, 0, n, limit, k - count_above(v, 0, n, limit), out);
    return;
  }
  std::vector<int64_t> above(parts), equal(parts);
  in_parts(n, parts, [&](int part, int64_t begin, int64_t end) {
    above[part] = count_above(v, begin, end, limit);
    equal[part] = (limit == 0 ? end - begin : count_above(v, begin, end, limit - 1)) - above[part];
  });
  int64_t left = k, at = 0;
  for (int64_t count : above)
    left -= count;
  std::vector<int64_t> ties(parts), start(parts);
  for (int part = 0; part < parts; ++part) {
    ties[part] = std::min(left, equal[part]);
    start[part] = at;
    left -= ties[part];
    at += above[part] + ties[part];
  }
  in_parts(n, parts, [&](int part, int64_t begin, int64_t end) {
    // The place after a part's last belongs to its neighbour, so each part writes to its own buffer first.
    std::vector<int64_t> buffer(above[part] + ties[part] + 1);
    emit(v, begin, end, limit, ties[part], buffer.data());
    std::copy(buffer.begin(), buffer.end() - 1, out + start[part]);
  });
}

// The same in each chunk: the `per_chunk` largest of `chunk` components, and `last` of those that are left over.
void sandtable_top_k_of_chunks(
    const float* v, int64_t n, int64_t chunk, int64_t per_chunk, int64_t last, int64_t* out, int threads) {
  in_parts(buckets_of(n, chunk), parts_for(n, threads), [&](int, int64_t begin, int64_t end) {
    SmallSelection selection;
    std::vector<int64_t> buffer(std::max(per_chunk, last) + 1);  // `emit` writes one too many
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c * chunk, stop = std::min(first + chunk, n), k = stop - first < chunk ? last : per_chunk;
      const uint32_t limit = selection.kth_magnitude(v + first, stop - first, k);
      emit(v, first, stop, limit, k - count_above(v, first, stop, limit), buffer.data());
      std::copy(buffer.begin(), buffer.begin() + k, out + c * per_chunk);
    }
  });
}

int64_t sandtable_count_above(const float* v, int64_t n, float limit) { return count_above(v, 0, n, bits_of(limit)); }

// Places of magnitudes above the limit; `out` has room for one more than there are.
void sandtable_above(const float* v, int64_t n, float limit, int64_t* out) { emit(v, 0, n, bits_of(limit), 0, out); }

// ---- components at places ----

void sandtable_gather(const float* v, const int64_t* places, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = v[places[i]];
}

void sandtable_scatter(const float* values, const int64_t* places, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[places[i]] = values[i];
}

void sandtable_scatter_add(const float* values, const int64_t* places, int64_t count, float weight, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[places[i]] += weight * values[i];
}

// ---- values of two bits: a sign, and one of two magnitudes of their group; the magnitudes first, then the codes ----

void sandtable_two_levels(const float* v, int64_t n, int64_t group, uint8_t* out) {
  uint8_t* packed = out + 8 * buckets_of(n, group);
  std::vector<uint8_t> codes(group);
  for (int64_t first = 0; first < n; first += group, out += 8) {
    const int64_t size = std::min(group, n - first);
    const float* here = v + first;
    const double sum = sum_of(here, size, [](float x) { return std::fabs(x); });
    const float limit = static_cast<float>(sum / size);
    const double large = sum_of(here, size, [=](float x) { return std::fabs(x) > limit ? std::fabs(x) : 0.0f; });
    int64_t num_large = 0;
    for (int64_t i = 0; i < size; ++i) {
      const bool is_large = std::fabs(here[i]) > limit;
      num_large += is_large;
      codes[i] = static_cast<uint8_t>(2 * (here[i] < 0) + is_large);
    }
    store(out, static_cast<float>((sum - large) / std::max<int64_t>(size - num_large, 1)));
    store(out + 4, static_cast<float>(large / std::max<int64_t>(num_large, 1)));
    pack<2>(codes.data(), size, packed + first / 4);
  }
}

void sandtable_from_two_levels(const uint8_t* in, int64_t n, int64_t group, float* out) {
  const uint8_t* packed = in + 8 * buckets_of(n, group);
  for (int64_t first = 0; first < n; first += group, in += 8) {
    const float small = load<float>(in), large = load<float>(in + 4), values[4] = {small, large, -small, -large};
    const int64_t stop = std::min(first + group, n);
    for (int64_t i = first; i < stop; ++i)
      out[i] = values[packed[i / 4] >> (i % 4 * 2) & 3];
  }
}

// One place in each of k equal strata of n, drawn from the key. Both are below 2^32, so that n * k fits a word.
void sandtable_draw(int64_t n, int64_t k, uint64_t key, int64_t* out) {
  const uint64_t base = mix64(key), all = static_cast<uint64_t>(n), count = static_cast<uint64_t>(k);
  uint64_t begin = 0;
  for (uint64_t j = 0; j < count; ++j) {
    const uint64_t end = all * (j + 1) / count, luck = mix64(base + j) >> 32;
    out[j] = static_cast<int64_t>(begin + (luck * (end - begin) >> 32));
    begin = end;
  }
}

// ---- ascending places, as Elias and Fano wrote them: `low` bits of each as they are, then the rest in unary ----

void sandtable_write_places(const int64_t* places, int64_t count, int64_t n, int low, uint8_t* out) {
  const int64_t low_bytes = (count * low + 7) / 8;
  BitWriter writer(out);
  if (low > 0) {
    for (int64_t i = 0; i < count; ++i)
      writer.write(static_cast<uint64_t>(places[i]) & ((1ull << low) - 1), low);
    writer.finish();
  }
  uint8_t* upper = out + low_bytes;
  std::memset(upper, 0, (count + ((n - 1) >> low) + 7) / 8);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = (places[i] >> low) + i;
    upper[bit >> 3] |= static_cast<uint8_t>(1u << (bit & 7));
  }
}

// Returns 0, or -1 if the message does not hold `count` ascending places below n.
int sandtable_read_places(const uint8_t* in, int64_t count, int64_t n, int low, int64_t* out) {
  const int64_t low_bytes = (count * low + 7) / 8, upper_bytes = (count + ((n - 1) >> low) + 7) / 8;
  BitReader reader(in, in + low_bytes);
  const uint8_t* upper = in + low_bytes;
  int64_t i = 0, previous = -1;
  for (int64_t byte = 0; byte < upper_bytes; byte += 8) {
    uint64_t word = 0;
    std::memcpy(&word, upper + byte, std::min<int64_t>(8, upper_bytes - byte));
    for (; word != 0; word &= word - 1, ++i) {
      if (i == count)
        return -1;
      const int64_t high = byte * 8 + __builtin_ctzll(word) - i;
      const int64_t place = high << low | static_cast<int64_t>(low > 0 ? reader.read(low) : 0);
      if (place <= previous || place >= n)
        return -1;
      out[i] = previous = place;
    }
  }
  return i == count ? 0 : -1;
}

// ---- the same places as a map of n bits, for when there are many ----

void sandtable_write_map(const int64_t* places, int64_t count, int64_t n, uint8_t* out) {
  std::memset(out, 0, (n + 7) / 8);
  for (int64_t i = 0; i < count; ++i)
    out[places[i] >> 3] |= static_cast<uint8_t>(1u << (places[i] & 7));
}

int sandtable_read_map(const uint8_t* in, int64_t count, int64_t n, int64_t* out) {
  const int64_t num_bytes = (n + 7) / 8;
  int64_t i = 0;
  for (int64_t byte = 0; byte < num_bytes; byte += 8) {
    uint64_t word = 0;
    std::memcpy(&word, in + byte, std::min<int64_t>(8, num_bytes - byte));
    for (; word != 0; word &= word - 1, ++i) {
      const int64_t place = byte * 8 + __builtin_ctzll(word);
      if (i == count || place >= n)
        return -1;
      out[i] = place;
    }
  }
  return i == count ? 0 : -1;
}

}  // extern "C"
