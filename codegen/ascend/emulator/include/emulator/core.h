// The state of one core and the checks behind every call. Kernels include only
// these declarations; server/core.cpp, built once, has the bodies.
//
// Every core keeps a vector clock per pipe: how many operations of each other
// pipe are known to be complete when an operation of this pipe starts. Events,
// queues and barriers join clocks; an access to memory last used by a pipe
// whose operation is not known to be complete is a fault.
#pragma once

#include "emulator/types.h"

namespace AscendC::emulator {

constexpr int kPipes = PIPE_ALL;
constexpr uint32_t kBlockBytes = 32;
constexpr uint32_t kUnifiedBytes = 188160;   // what a kernel may use of the 192 KiB
constexpr uint32_t kMaxBuffers = 64;
constexpr uint32_t kMaxLivePerPosition = 8;
constexpr int kEventsPerPair = 8;
constexpr uint32_t kPoison = 0x7fba7fba;     // a NaN as float and as two halves

struct Clock {
    uint32_t at[kPipes];
};

enum class BufferState { kFree, kAllocated, kQueued, kTaken, kScratch };

// Buffer is a piece of unified buffer handed out by TPipe. The generation grows
// with each release, so that a tensor kept after FreeTensor is recognised.
struct Buffer {
    uint32_t offset;
    uint32_t bytes;
    TPosition position;
    const void* owner;
    BufferState state;
    uint32_t generation;
    Clock filled;      // the producer's clock at EnQue
    Clock released;    // the consumer's clock at FreeTensor
};

// View is what a LocalTensor refers to.
struct View {
    Buffer* buffer = nullptr;
    uint32_t generation = 0;
    uint32_t offset = 0;   // bytes from the start of the buffer
    uint32_t bytes = 0;
};

// Region is what a GlobalTensor refers to: the declared part of a kernel argument.
struct Region {
    uint8_t* base = nullptr;
    uint64_t bytes = 0;
    bool declared = false;
};

// Begin starts a call on a pipe; later faults name this call.
void Begin(const char* call, pipe_t pipe);
// Enter names a call that occupies no pipe.
void Enter(const char* call);
[[noreturn]] void Fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

int64_t BlockIndex();
int64_t BlockCount();
void DeclareKernel(KernelType type);
bool OnCube();
void RequireVectorCore();
void RequireCubeCore();

// ReadLocal and WriteLocal check one operand of the current call and return its
// address. elementBytes of 2 or 4 makes ReadLocal refuse poisoned elements.
const uint8_t* ReadLocal(const View& view, uint64_t bytes, uint32_t elementBytes);
uint8_t* WriteLocal(const View& view, uint64_t bytes);
// ReadLocalPrefix is ReadLocal for Compare, which works on whole repeats: the
// last partial repeat may be uninitialised. It returns the initialised length.
const uint8_t* ReadLocalPrefix(const View& view, uint64_t bytes, uint32_t elementBytes, uint64_t* initialised);
void RequireAligned(const View& view);
void RequireSameOrApart(const View& a, uint64_t aBytes, const View& b, uint64_t bBytes);

Region DeclareRegion(uint8_t* base, uint64_t bytes, bool sized);
const uint8_t* ReadGlobal(const Region& region, uint64_t offset, uint64_t bytes);
uint8_t* WriteGlobal(const Region& region, uint64_t offset, uint64_t bytes);
// StoreGlobal copies to global memory, or adds when atomic mode is on for this type.
void StoreGlobal(const Region& region, uint64_t offset, const uint8_t* source, uint64_t bytes);
void PublishScalarWrites();
void MarkScalarWrite();

enum class AtomicType { kNone, kFloat, kHalf, kInt32, kInt16 };
void SetAtomic(AtomicType type);
void AddGlobal(const Region& region, uint64_t offset, const uint8_t* source, uint64_t bytes, AtomicType type);

void StartPipe(const void* pipe);
void InitQueue(const void* queue, TPosition position, uint32_t count, uint32_t bytes);
Buffer* InitScratch(const void* owner, uint32_t bytes);
Buffer* AllocBuffer(const void* queue, TPosition position, pipe_t producer);
void EnqueueBuffer(const void* queue, const View& view, pipe_t producer);
void DequeueBuffer(Buffer* buffer, pipe_t consumer);
void FreeBuffer(const void* queue, const View& view, pipe_t consumer);

void SetEvent(HardEvent event, int32_t id);
void WaitEvent(HardEvent event, int32_t id);
TEventID FreeEvent(HardEvent event);
void Barrier(pipe_t pipe);
void SynchroniseBlocks();

// NameOf gives the word used in fault texts.
template <class T>
constexpr const char* NameOf() {
    if constexpr (std::is_same_v<T, float>) return "float";
    else if constexpr (std::is_same_v<T, half>) return "half";
    else if constexpr (std::is_same_v<T, bfloat16_t>) return "bfloat16_t";
    else if constexpr (std::is_same_v<T, int32_t>) return "int32_t";
    else if constexpr (std::is_same_v<T, uint32_t>) return "uint32_t";
    else if constexpr (std::is_same_v<T, int16_t>) return "int16_t";
    else if constexpr (std::is_same_v<T, uint16_t>) return "uint16_t";
    else if constexpr (std::is_same_v<T, int8_t>) return "int8_t";
    else if constexpr (std::is_same_v<T, uint8_t>) return "uint8_t";
    else if constexpr (std::is_same_v<T, int64_t>) return "int64_t";
    else return "an unknown type";
}

template <class T, class... Allowed>
void RequireType() {
    if constexpr (!(std::is_same_v<T, Allowed> || ...)) Fault("the vector unit has no form of this call for %s", NameOf<T>());
}

}  // namespace AscendC::emulator

#define ASCEND_IS_AIC (::AscendC::emulator::OnCube())
#define ASCEND_IS_AIV (!::AscendC::emulator::OnCube())
#define KERNEL_TASK_TYPE_DEFAULT(type) ::AscendC::emulator::DeclareKernel(type)

namespace AscendC {

inline int64_t GetBlockIdx() { return emulator::BlockIndex(); }
inline int64_t GetBlockNum() { return emulator::BlockCount(); }
inline int64_t GetSubBlockIdx() { return 0; }

template <HardEvent event>
void SetFlag(int32_t id) { emulator::SetEvent(event, id); }
template <HardEvent event>
void WaitFlag(int32_t id) { emulator::WaitEvent(event, id); }
template <pipe_t pipe>
void PipeBarrier() { emulator::Barrier(pipe); }
template <bool isAIVOnly = true>
void SyncAll() { emulator::SynchroniseBlocks(); }

}  // namespace AscendC
