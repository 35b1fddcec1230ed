// Moves between global memory and the unified buffer.
#pragma once

#include "emulator/pipe.h"

namespace AscendC {

struct DataCopyParams {
    DataCopyParams() = default;
    DataCopyParams(uint16_t count, uint16_t length, uint16_t sourceGap, uint16_t destinationGap)
        : blockCount(count), blockLen(length), srcGap(sourceGap), dstGap(destinationGap) {}
    uint16_t blockCount = 1;
    uint16_t blockLen = 0;   // 32-byte units, the gaps too
    uint16_t srcGap = 0;
    uint16_t dstGap = 0;
};

struct DataCopyExtParams {
    DataCopyExtParams() = default;
    DataCopyExtParams(uint16_t count, uint32_t length, uint32_t source, uint32_t destination, uint32_t reserved)
        : blockCount(count), blockLen(length), srcStride(source), dstStride(destination), rsv(reserved) {}
    uint16_t blockCount = 1;
    uint32_t blockLen = 0;    // bytes
    uint32_t srcStride = 0;   // gap: bytes in global memory, 32-byte units in the unified buffer
    uint32_t dstStride = 0;
    uint32_t rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
    bool isPad = false;
    uint8_t leftPadding = 0;    // elements
    uint8_t rightPadding = 0;
    T paddingValue{};
};

namespace emulator {

inline View Part(const View& view, uint64_t offset) {
    View part = view;
    if (offset > view.bytes) Fault("byte %llu is beyond the local tensor of %u bytes", (unsigned long long)offset, view.bytes);
    part.offset += uint32_t(offset);
    part.bytes -= uint32_t(offset);
    return part;
}

inline void RequireWholeBlocks(uint64_t bytes) {
    if (bytes == 0) Fault("a move of 0 bytes");
    if (bytes % kBlockBytes != 0) Fault("%llu bytes is not a multiple of 32", (unsigned long long)bytes);
    if (bytes / kBlockBytes > 65535) Fault("%llu bytes is more than 65535 blocks of 32", (unsigned long long)bytes);
}

template <class T>
void RequireExtParams(const DataCopyExtParams& params) {
    if (params.blockCount == 0 || params.blockCount > 4095) Fault("blockCount %u is not in 1..4095", unsigned(params.blockCount));
    if (params.blockLen == 0 || params.blockLen > 2097151) Fault("blockLen %u is not in 1..2097151", params.blockLen);
    if (params.blockLen % sizeof(T) != 0) Fault("blockLen %u is not a multiple of the element size %zu", params.blockLen, sizeof(T));
}

inline uint64_t RoundUp(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

}  // namespace emulator

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params) {
    emulator::Begin("DataCopy", PIPE_MTE2);
    emulator::RequireVectorCore();
    const uint64_t length = uint64_t(params.blockLen) * emulator::kBlockBytes;
    if (params.blockCount == 0 || params.blockCount > 4095) emulator::Fault("blockCount %u is not in 1..4095", unsigned(params.blockCount));
    emulator::RequireWholeBlocks(length);
    emulator::RequireAligned(dst.view());
    for (uint64_t row = 0; row < params.blockCount; row++) {
        const uint64_t from = row * (length + uint64_t(params.srcGap) * emulator::kBlockBytes);
        const uint64_t to = row * (length + uint64_t(params.dstGap) * emulator::kBlockBytes);
        const uint8_t* source = emulator::ReadGlobal(src.region(), from, length);
        std::memcpy(emulator::WriteLocal(emulator::Part(dst.view(), to), length), source, length);
    }
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params) {
    emulator::Begin("DataCopy", PIPE_MTE3);
    emulator::RequireVectorCore();
    const uint64_t length = uint64_t(params.blockLen) * emulator::kBlockBytes;
    if (params.blockCount == 0 || params.blockCount > 4095) emulator::Fault("blockCount %u is not in 1..4095", unsigned(params.blockCount));
    emulator::RequireWholeBlocks(length);
    emulator::RequireAligned(src.view());
    for (uint64_t row = 0; row < params.blockCount; row++) {
        const uint64_t from = row * (length + uint64_t(params.srcGap) * emulator::kBlockBytes);
        const uint64_t to = row * (length + uint64_t(params.dstGap) * emulator::kBlockBytes);
        const uint8_t* source = emulator::ReadLocal(emulator::Part(src.view(), from), length, sizeof(T));
        emulator::StoreGlobal(dst.region(), to, source, length);
    }
}

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count) {
    emulator::Begin("DataCopy", PIPE_MTE2);
    emulator::RequireVectorCore();
    const uint64_t length = uint64_t(count) * sizeof(T);
    emulator::RequireWholeBlocks(length);
    emulator::RequireAligned(dst.view());
    const uint8_t* source = emulator::ReadGlobal(src.region(), 0, length);
    std::memcpy(emulator::WriteLocal(dst.view(), length), source, length);
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
    emulator::Begin("DataCopy", PIPE_MTE3);
    emulator::RequireVectorCore();
    const uint64_t length = uint64_t(count) * sizeof(T);
    emulator::RequireWholeBlocks(length);
    emulator::RequireAligned(src.view());
    emulator::StoreGlobal(dst.region(), 0, emulator::ReadLocal(src.view(), length, sizeof(T)), length);
}

// A move inside the unified buffer is work of the vector pipe.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
    emulator::Begin("DataCopy", PIPE_V);
    emulator::RequireVectorCore();
    const uint64_t length = uint64_t(count) * sizeof(T);
    emulator::RequireWholeBlocks(length);
    emulator::RequireAligned(dst.view());
    emulator::RequireAligned(src.view());
    emulator::RequireSameOrApart(dst.view(), length, src.view(), length);
    const uint8_t* source = emulator::ReadLocal(src.view(), length, sizeof(T));
    std::memmove(emulator::WriteLocal(dst.view(), length), source, length);
}

// Rows land on 32-byte boundaries. Without isPad the rest of a row's last block
// is undefined on the chip: here it is poison.
template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& params,
                 const DataCopyPadExtParams<T>& pad) {
    emulator::Begin("DataCopyPad", PIPE_MTE2);
    emulator::RequireVectorCore();
    emulator::RequireExtParams<T>(params);
    emulator::RequireAligned(dst.view());
    if (pad.leftPadding * sizeof(T) > emulator::kBlockBytes || pad.rightPadding * sizeof(T) > emulator::kBlockBytes) {
        emulator::Fault("padding of %u and %u elements is more than 32 bytes", unsigned(pad.leftPadding), unsigned(pad.rightPadding));
    }
    const uint64_t left = pad.leftPadding * sizeof(T);
    const uint64_t right = pad.rightPadding * sizeof(T);
    const uint64_t row = emulator::RoundUp(left + params.blockLen + right);
    for (uint64_t index = 0; index < params.blockCount; index++) {
        const uint64_t from = index * (uint64_t(params.blockLen) + params.srcStride);
        const uint64_t to = index * (row + uint64_t(params.dstStride) * emulator::kBlockBytes);
        const uint8_t* source = emulator::ReadGlobal(src.region(), from, params.blockLen);
        uint8_t* target = emulator::WriteLocal(emulator::Part(dst.view(), to), row);
        const uint64_t padded = pad.isPad ? left + params.blockLen + right : 0;
        for (uint64_t at = 0; at < padded; at += sizeof(T)) std::memcpy(target + at, &pad.paddingValue, sizeof(T));
        for (uint64_t at = padded; at < row; at++) target[at] = uint8_t(emulator::kPoison >> (8 * (at % 4)));
        std::memcpy(target + left, source, params.blockLen);
    }
}

template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& params) {
    emulator::Begin("DataCopyPad", PIPE_MTE3);
    emulator::RequireVectorCore();
    emulator::RequireExtParams<T>(params);
    emulator::RequireAligned(src.view());
    const uint64_t row = emulator::RoundUp(params.blockLen);
    for (uint64_t index = 0; index < params.blockCount; index++) {
        const uint64_t from = index * (row + uint64_t(params.srcStride) * emulator::kBlockBytes);
        const uint64_t to = index * (uint64_t(params.blockLen) + params.dstStride);
        const uint8_t* source = emulator::ReadLocal(emulator::Part(src.view(), from), params.blockLen, sizeof(T));
        emulator::StoreGlobal(dst.region(), to, source, params.blockLen);
    }
}

template <class T>
void SetAtomicAdd() {
    emulator::Enter("SetAtomicAdd");
    if constexpr (std::is_same_v<T, float>) emulator::SetAtomic(emulator::AtomicType::kFloat);
    else if constexpr (std::is_same_v<T, half>) emulator::SetAtomic(emulator::AtomicType::kHalf);
    else if constexpr (std::is_same_v<T, int32_t>) emulator::SetAtomic(emulator::AtomicType::kInt32);
    else if constexpr (std::is_same_v<T, int16_t>) emulator::SetAtomic(emulator::AtomicType::kInt16);
    else emulator::Fault("atomic addition of %s is not emulated", emulator::NameOf<T>());
}
inline void SetAtomicNone() { emulator::SetAtomic(emulator::AtomicType::kNone); }

}  // namespace AscendC
