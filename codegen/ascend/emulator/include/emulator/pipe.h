// TPipe, queues and scratch buffers.
#pragma once

#include <deque>

#include "emulator/tensor.h"

namespace AscendC {

// TQueBind hands buffers from the pipe that fills src to the pipe that drains dst.
template <TPosition src, TPosition dst, int32_t depth>
class TQueBind {
public:
    static_assert(depth > 0, "in-place queues are not emulated");
    static constexpr pipe_t kProducer = src == TPosition::VECIN ? PIPE_MTE2 : PIPE_V;
    static constexpr pipe_t kConsumer = dst == TPosition::VECOUT ? PIPE_MTE3 : PIPE_V;
    static constexpr TPosition kPosition = src == TPosition::VECCALC ? dst : src;

    template <class T>
    LocalTensor<T> AllocTensor() {
        emulator::Enter("AllocTensor");
        return Whole<T>(emulator::AllocBuffer(this, kPosition, kProducer));
    }
    template <class T>
    bool EnQue(const LocalTensor<T>& tensor) {
        emulator::Enter("EnQue");
        if (queued_.size() >= size_t(depth)) {
            emulator::Fault("the queue of depth %d is full: DeQue comes first", int(depth));
        }
        emulator::EnqueueBuffer(this, tensor.view(), kProducer);
        queued_.push_back(tensor.view().buffer);
        return true;
    }
    template <class T>
    LocalTensor<T> DeQue() {
        emulator::Enter("DeQue");
        if (queued_.empty()) emulator::Fault("nothing is in the queue: EnQue comes first");
        emulator::Buffer* buffer = queued_.front();
        queued_.pop_front();
        emulator::DequeueBuffer(buffer, kConsumer);
        return Whole<T>(buffer);
    }
    template <class T>
    void FreeTensor(const LocalTensor<T>& tensor) {
        emulator::Enter("FreeTensor");
        emulator::FreeBuffer(this, tensor.view(), kConsumer);
    }

private:
    template <class T>
    static LocalTensor<T> Whole(emulator::Buffer* buffer) {
        return LocalTensor<T>(emulator::View{buffer, buffer->generation, 0, buffer->bytes});
    }

    std::deque<emulator::Buffer*> queued_;
};

template <TPosition position, int32_t depth>
class TQue;
template <int32_t depth>
class TQue<TPosition::VECIN, depth> : public TQueBind<TPosition::VECIN, TPosition::VECCALC, depth> {};
template <int32_t depth>
class TQue<TPosition::VECOUT, depth> : public TQueBind<TPosition::VECCALC, TPosition::VECOUT, depth> {};

template <TPosition position = TPosition::VECCALC>
class TBuf {
public:
    template <class T>
    LocalTensor<T> Get() { return Part<T>(0, buffer_ ? buffer_->bytes : 0); }
    template <class T>
    LocalTensor<T> Get(uint32_t count) { return Part<T>(0, uint64_t(count) * sizeof(T)); }
    template <class T>
    LocalTensor<T> GetWithOffset(uint32_t count, uint32_t byteOffset) { return Part<T>(byteOffset, uint64_t(count) * sizeof(T)); }

private:
    friend class TPipe;

    template <class T>
    LocalTensor<T> Part(uint32_t offset, uint64_t bytes) {
        emulator::Enter("TBuf::Get");
        if (!buffer_) emulator::Fault("the buffer was not initialised with InitBuffer");
        if (offset + bytes > buffer_->bytes) {
            emulator::Fault("%llu bytes at %u are beyond the buffer of %u bytes", (unsigned long long)bytes, offset, buffer_->bytes);
        }
        return LocalTensor<T>(emulator::View{buffer_, buffer_->generation, offset, uint32_t(bytes)});
    }

    emulator::Buffer* buffer_ = nullptr;
};

class TPipe {
public:
    TPipe() {
        emulator::Enter("TPipe");
        emulator::StartPipe(this);
    }
    TPipe(const TPipe&) = delete;

    template <TPosition src, TPosition dst, int32_t depth>
    bool InitBuffer(TQueBind<src, dst, depth>& queue, uint8_t count, uint32_t bytes) {
        emulator::Enter("InitBuffer");
        emulator::InitQueue(&queue, TQueBind<src, dst, depth>::kPosition, count, bytes);
        return true;
    }
    template <TPosition position>
    bool InitBuffer(TBuf<position>& scratch, uint32_t bytes) {
        emulator::Enter("InitBuffer");
        scratch.buffer_ = emulator::InitScratch(&scratch, bytes);
        return true;
    }
    TEventID FetchEventID(HardEvent event) { return emulator::FreeEvent(event); }
};

}  // namespace AscendC
