//go:build !linux

package main

import (
	"context"
	"os"
	"syscall"

	"github.com/urfave/cli/v3"
)

// endSignals end the command.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// launchCommands say that processes are joined on Linux only.
func (a *app) launchCommands() []*cli.Command {
	return []*cli.Command{{
		Name: "launch", Usage: "train with a process for every rank (on Linux)", ArgsUsage: "FILE|DIR",
		Action: func(context.Context, *cli.Command) error { return usagef("launch works on Linux only; use ppc run") },
	}}
}
