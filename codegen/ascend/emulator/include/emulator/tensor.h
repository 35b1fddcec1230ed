// GlobalTensor and LocalTensor.
#pragma once

#include "emulator/core.h"

namespace AscendC {

template <class T>
class GlobalTensor {
public:
    using PrimType = T;

    void SetGlobalBuffer(T* buffer, uint64_t count) {
        emulator::Enter("SetGlobalBuffer");
        region_ = emulator::DeclareRegion(reinterpret_cast<uint8_t*>(buffer), count * sizeof(T), true);
    }
    void SetGlobalBuffer(T* buffer) {
        emulator::Enter("SetGlobalBuffer");
        region_ = emulator::DeclareRegion(reinterpret_cast<uint8_t*>(buffer), 0, false);
    }
    GlobalTensor operator[](uint64_t index) const {
        emulator::Enter("GlobalTensor::operator[]");
        const uint64_t skip = index * sizeof(T);
        if (skip > region_.bytes) {
            emulator::Fault("element %llu is outside the global tensor of %llu elements", (unsigned long long)index,
                            (unsigned long long)GetSize());
        }
        GlobalTensor part;
        part.region_ = region_;
        part.region_.base += skip;
        part.region_.bytes -= skip;
        return part;
    }
    T GetValue(uint64_t index) const {
        emulator::Begin("GlobalTensor::GetValue", PIPE_S);
        T value;
        std::memcpy(&value, emulator::ReadGlobal(region_, index * sizeof(T), sizeof(T)), sizeof(T));
        return value;
    }
    void SetValue(uint64_t index, T value) {
        emulator::Begin("GlobalTensor::SetValue", PIPE_S);
        std::memcpy(emulator::WriteGlobal(region_, index * sizeof(T), sizeof(T)), &value, sizeof(T));
        emulator::MarkScalarWrite();
    }
    uint64_t GetSize() const { return region_.bytes / sizeof(T); }
    T* GetPhyAddr() const { return reinterpret_cast<T*>(region_.base); }

    const emulator::Region& region() const { return region_; }

private:
    emulator::Region region_;
};

template <class T>
class LocalTensor {
public:
    using PrimType = T;

    LocalTensor() = default;
    explicit LocalTensor(const emulator::View& view) : view_(view) {}

    LocalTensor operator[](uint32_t index) const {
        emulator::Enter("LocalTensor::operator[]");
        const uint64_t skip = uint64_t(index) * sizeof(T);
        if (skip > view_.bytes) emulator::Fault("element %u is outside the local tensor of %u elements", index, GetSize());
        emulator::View part = view_;
        part.offset += uint32_t(skip);
        part.bytes -= uint32_t(skip);
        return LocalTensor(part);
    }
    T GetValue(uint32_t index) const {
        emulator::Begin("LocalTensor::GetValue", PIPE_S);
        const emulator::View element = Element(index);
        T value;
        std::memcpy(&value, emulator::ReadLocal(element, sizeof(T), sizeof(T)), sizeof(T));
        return value;
    }
    void SetValue(uint32_t index, T value) const {
        emulator::Begin("LocalTensor::SetValue", PIPE_S);
        const emulator::View element = Element(index);
        std::memcpy(emulator::WriteLocal(element, sizeof(T)), &value, sizeof(T));
    }
    template <class U>
    LocalTensor<U> ReinterpretCast() const { return LocalTensor<U>(view_); }
    uint32_t GetSize() const { return uint32_t(view_.bytes / sizeof(T)); }

    const emulator::View& view() const { return view_; }

private:
    emulator::View Element(uint32_t index) const {
        if (uint64_t(index) * sizeof(T) + sizeof(T) > view_.bytes) {
            emulator::Fault("element %u is outside the local tensor of %u elements", index, GetSize());
        }
        emulator::View part = view_;
        part.offset += index * uint32_t(sizeof(T));
        part.bytes -= index * uint32_t(sizeof(T));
        return part;
    }

    emulator::View view_;
};

// DataCacheCleanAndInvalid publishes scalar writes to global memory.
template <class T, CacheLine line, DcciDst destination>
void DataCacheCleanAndInvalid(const GlobalTensor<T>&) {
    emulator::Begin("DataCacheCleanAndInvalid", PIPE_S);
    emulator::PublishScalarWrites();
}

}  // namespace AscendC
