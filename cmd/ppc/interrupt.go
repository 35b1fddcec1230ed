package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts are the signals that end the command. The first one ends its context, unless a training is under way that can be
// saved: then it asks for that, and the next one ends the context. The one behind that ends the process.
type interrupts struct {
	mu   sync.Mutex
	save func() (taken bool)
}

// until ends ctx at a signal.
func (i *interrupts) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endSignals...)
	go func() {
		defer cancel()
		defer signal.Stop(signals)
		for {
			select {
			case <-signals:
				if !i.saves() {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

func (i *interrupts) saves() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.save != nil && i.save()
}

// wish is a channel that a signal closes, until done is called. begun is told then. Of a rank that others end, signals do no
// more: one may come from the terminal, one from who started it.
func (i *interrupts) wish(ofMany bool, begun func()) (closed <-chan struct{}, ask, done func()) {
	c := make(chan struct{})
	var once sync.Once
	i.mu.Lock()
	defer i.mu.Unlock()
	first := func() (taken bool) {
		once.Do(func() {
			taken = true
			close(c)
			begun()
		})
		return taken
	}
	i.save = func() bool { return first() || ofMany }
	return c, func() { first() }, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.save = nil
	}
}

// questions takes SIGQUIT, which asks what the ranks do, until stop is called. Who asks before there are ranks gets the answer then.
func (a *app) questions() (stop func()) {
	a.quit = make(chan os.Signal, 1)
	signal.Notify(a.quit, syscall.SIGQUIT)
	return func() { signal.Stop(a.quit) }
}
