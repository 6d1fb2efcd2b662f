#include "identity.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "recorder.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kWholeBytes = size_t{64} << 10; // of longer contents on the host, pieces are read
constexpr size_t kPieces = 256;
constexpr size_t kPieceBytes = 128;

constexpr size_t kMostNoted = 1 << 16;
constexpr size_t kMostParts = 1 << 16;

bool follows = false;
std::vector<HostCopy> noted_copies;
std::vector<Draw> noted_draws;

// Numbers that were never written to memory on the host, by its address: as long as they are there.
struct LeftOut {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Digest identity;
};
std::unordered_map<const void*, LeftOut> left_out_numbers;

Digest digest_bytes(Digest start, const char* bytes, size_t count) {
  Digest digest = mix(start, count);
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    digest = mix(digest, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes, count);
  return mix(digest, rest);
}

bool is_whole(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
      tensor.numel() * tensor.element_size() == tensor.storage().nbytes();
}

Digest digest_sizes(const at::Tensor& tensor) {
  Digest digest = static_cast<Digest>(tensor.scalar_type());
  for (int64_t size : tensor.sizes())
    digest = mix(digest, static_cast<Digest>(size));
  return digest;
}

Digest digest_geometry(const at::Tensor& tensor) {
  Digest digest = digest_sizes(tensor);
  if (is_whole(tensor))
    return digest;
  for (int64_t stride : tensor.strides())
    digest = mix(digest, static_cast<Digest>(stride));
  return mix(digest, static_cast<Digest>(tensor.storage_offset()));
}

Digest digest_host(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.is_sparse() || tensor.storage().data() == nullptr)
    return 1;
  const char* bytes = static_cast<const char*>(tensor.storage().data()) + tensor.storage_offset() * tensor.element_size();
  size_t count = tensor.numel() * tensor.element_size();
  if (!tensor.is_non_overlapping_and_dense()) // (expanded, or a part of rows)
    count = std::min(count, tensor.storage().nbytes() - tensor.storage_offset() * tensor.element_size());
  Digest digest = static_cast<Digest>(tensor.scalar_type());
  if (count <= kWholeBytes)
    return digest_bytes(digest, bytes, count);
  bool is_zero = true;
  for (size_t k = 0; k < kPieces; ++k) {
    const char* piece = bytes + (count - kPieceBytes) / (kPieces - 1) * k;
    is_zero = is_zero && std::all_of(piece, piece + kPieceBytes, [](char byte) { return byte == 0; });
    digest = digest_bytes(digest, piece, kPieceBytes);
  }
  // (numbers that were left out are zeros: anything else has been written there since)
  auto known = is_zero ? left_out_numbers.find(tensor.storage().data()) : left_out_numbers.end();
  bool is_left_out = known != left_out_numbers.end() && !known->second.storage.expired();
  return is_left_out ? mix(known->second.identity, digest_geometry(tensor)) : digest;
}

Digest digest_argument(const c10::IValue& value) {
  if (value.isInt())
    return static_cast<Digest>(value.toInt());
  if (value.isBool())
    return value.toBool() ? 3 : 5;
  if (value.isDouble()) {
    double number = value.toDouble();
    Digest bits;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
  }
  if (value.isIntList()) {
    Digest digest = 7;
    for (int64_t number : value.toIntVector())
      digest = mix(digest, static_cast<Digest>(number));
    return digest;
  }
  if (value.isString())
    return digest_of(value.toStringRef());
  return 11;
}

bool range_of(const at::Tensor& tensor, int64_t& begin, int64_t& end) {
  if (!tensor.is_non_overlapping_and_dense())
    return false;
  int64_t size = static_cast<int64_t>(tensor.element_size());
  begin = tensor.storage_offset() * size;
  end = begin + tensor.numel() * size;
  return true;
}

// The part that the tensor lies in; null if there is none.
WrittenPart* part_around(Block& block, const at::Tensor& tensor, int64_t* begin_of_part) {
  int64_t begin, end;
  if (block.contents.empty() || !range_of(tensor, begin, end))
    return nullptr;
  auto after = block.contents.upper_bound(begin);
  if (after == block.contents.begin())
    return nullptr;
  --after;
  *begin_of_part = after->first;
  return end <= after->second.end ? &after->second : nullptr;
}

// Leaves what lies outside of the range.
void cut_out(Contents& contents, int64_t begin, int64_t end) {
  auto at = contents.upper_bound(begin);
  if (at != contents.begin())
    --at;
  while (at != contents.end() && at->first < end) {
    auto [start, part] = *at;
    if (part.end <= begin) {
      ++at;
      continue;
    }
    at = contents.erase(at);
    if (start < begin)
      contents[start] = {begin, mix(part.identity, static_cast<Digest>(begin)), part.scale};
    if (end < part.end)
      contents[end] = {part.end, mix(part.identity, static_cast<Digest>(end)), part.scale};
  }
}

} // namespace

Digest digest_of(const std::string& text) {
  return digest_bytes(0, text.data(), text.size());
}

void follow_identities(bool on) {
  follows = on;
}

bool follows_identities() {
  return follows;
}

Identity identity_of(const at::Tensor& tensor) {
  if (!follows || !tensor.defined())
    return {};
  if (tensor.is_cpu())
    return same(digest_host(tensor));
  Block* block = block_of(tensor);
  if (block == nullptr)
    return {};
  int64_t first = 0, begin = 0, end = 0;
  if (WrittenPart* part = part_around(*block, tensor, &first)) {
    int64_t offset = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) - first;
    return mix(part->identity, mix(digest_sizes(tensor), static_cast<Digest>(offset)));
  }
  Identity identity = mix(block->identity, digest_geometry(tensor));
  if (block->contents.empty())
    return identity;
  if (!range_of(tensor, begin, end))
    end = static_cast<int64_t>(tensor.storage().nbytes());
  for (const auto& [start, part] : block->contents)
    if (start < end && begin < part.end)
      identity = mix(mix(identity, part.identity), static_cast<Digest>(start - begin));
  return identity;
}

void write_identity(const at::Tensor& tensor, const Identity& identity) {
  Block* block = follows ? block_of(tensor) : nullptr;
  if (block == nullptr)
    return;
  block->written_line = current_place().line;
  int64_t begin, end;
  if (static_cast<size_t>(tensor.numel() * tensor.element_size()) == tensor.storage().nbytes()) {
    block->identity = identity;
    block->contents.clear();
  } else if (range_of(tensor, begin, end) && block->contents.size() < kMostParts) {
    cut_out(block->contents, begin, end);
    block->contents[begin] = {end, mix(identity, 1), {}};
  } else {
    block->identity = mix(mix(block->identity, digest_geometry(tensor)), identity);
    for (auto& [start, part] : block->contents)
      part.identity = mix(part.identity, block->identity);
  }
}

GradientScale scale_of(const at::Tensor& tensor) {
  Block* block = tensor.defined() && tensor.is_cuda() ? block_of(tensor) : nullptr;
  if (block == nullptr)
    return {};
  int64_t first;
  if (WrittenPart* part = part_around(*block, tensor, &first))
    return part->scale;
  if (block->contents.empty())
    return block->scale;
  GradientScale one = block->contents.begin()->second.scale;
  for (const auto& [begin, part] : block->contents) { // (DDP's buckets have zeros for parameters that were not used)
    if (one.is_zero())
      one = part.scale;
    else if (!part.scale.is_zero() && !(part.scale == one))
      return {};
  }
  return one;
}

void write_scale(const at::Tensor& tensor, const GradientScale& scale) {
  Block* block = tensor.defined() && tensor.is_cuda() ? block_of(tensor) : nullptr;
  if (block == nullptr)
    return;
  int64_t first;
  if (WrittenPart* part = part_around(*block, tensor, &first))
    part->scale = scale;
  else
    block->scale = scale;
}

void note_host_copy(const at::Tensor& from, Digest identity) {
  if (noted_copies.size() < kMostNoted)
    noted_copies.push_back(
        {identity, from.numel() * static_cast<int64_t>(from.element_size()), current_place().line,
         static_cast<int64_t>(Recorder::get().num_rows())});
}

void note_draw(Digest identity, int64_t num_elements) {
  if (noted_draws.size() < kMostNoted)
    noted_draws.push_back({identity, num_elements, current_place().line, static_cast<int64_t>(Recorder::get().num_rows())});
}

const std::vector<HostCopy>& host_copies() {
  return noted_copies;
}

const std::vector<Draw>& draws() {
  return noted_draws;
}

void name_host_numbers(const at::Tensor& tensor, Digest identity) {
  if (!follows || !tensor.is_cpu() || !tensor.has_storage())
    return;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage(tensor.storage().getWeakStorageImpl());
  left_out_numbers.insert_or_assign(tensor.storage().data(), LeftOut{std::move(storage), identity});
}

Lineage::Lineage(const OperatorInfo& info, const torch::jit::Stack& stack)
    : common_(same(info.name_digest)), is_by_item_(info.is_by_item) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    const c10::IValue& value = stack[first + i];
    bool overwritten = info.argument_overwritten[i];
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined())
        common_ = mix(common_, overwritten ? same(13) : identity_of(tensor));
    } else if (value.isTensorList()) {
      size_t item = 0;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        Identity identity = tensor.defined() && !overwritten ? identity_of(tensor) : same(17);
        if (!is_by_item_) {
          common_ = mix(common_, identity);
        } else if (item < items_.size()) {
          items_[item] = mix(items_[item], identity);
        } else {
          items_.push_back(mix(identity, i));
        }
        ++item;
      }
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        common_ = mix(common_, tensor && tensor->defined() ? identity_of(*tensor) : same(19));
    } else {
      common_ = mix(common_, digest_argument(value));
    }
  }
}

Identity Lineage::of(size_t index, size_t item) const {
  if (is_by_item_ && item < items_.size())
    return mix(mix(common_, items_[item]), index);
  return mix(mix(common_, index), item);
}

} // namespace sandtable
