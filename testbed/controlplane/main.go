// Command controlplane runs a Kubernetes control plane on loopback, each component a process that can be stopped,
// killed and started again alone.
//
//	controlplane prepare DIR            chooses ports, makes certificates and kubeconfigs
//	controlplane run DIR COMPONENT      is that component until it is told to stop
//	controlplane compact DIR            forgets all versions but the last
//	controlplane wait DIR SECONDS       returns once Pods can be made
//
// A folder is one control plane; several run side by side. Nothing is meant to last: etcd does not wait for the disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	_ "time/tzdata" // CronJobs with a time zone

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
	}
	os.Exit(code)
}

const usage = "usage: controlplane prepare DIR | compact DIR | wait DIR SECONDS | run DIR COMPONENT [FLAG]..."

func run(args []string) (int, error) {
	switch {
	case len(args) == 2 && args[0] == "prepare":
		return exit(prepare(args[1]))
	case len(args) == 2 && args[0] == "compact":
		return exit(compact(args[1]))
	case len(args) == 3 && args[0] == "wait":
		return exit(wait(args[1], args[2]))
	case len(args) >= 3 && args[0] == "run":
		folder, err := open(args[1])
		if err != nil {
			return exit(err)
		}
		return component(folder, args[2], args[3:])
	default:
		return 64, errors.New(usage)
	}
}

// exit is how a command ends that either works or fails.
func exit(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func component(folder folder, name string, more []string) (int, error) {
	switch name {
	case "etcd":
		return exit(etcd(folder))
	case "kube-apiserver":
		return command(apiserver.NewAPIServerCommand(), append(folder.apiserver(), more...)), nil
	case "kube-controller-manager":
		// It ends where there is no API server yet; the others wait by themselves.
		if err := folder.until(2*time.Minute, answers); err != nil {
			return exit(err)
		}
		args := append(folder.controllerManager(), more...)
		return command(controllermanager.NewControllerManagerCommand(), args), nil
	case "kube-scheduler":
		return command(scheduler.NewSchedulerCommand(), append(folder.scheduler(), more...)), nil
	default:
		return 64, fmt.Errorf("no component is called %q", name)
	}
}

func command(command *cobra.Command, args []string) int {
	command.SetArgs(args)
	return cli.Run(command)
}

// etcd serves until it is told to stop.
func etcd(folder folder) error {
	config := embed.NewConfig()
	config.Dir = filepath.Join(folder.path, "etcd")
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	client, peer := local("http", folder.ports.EtcdClient), local("http", folder.ports.EtcdPeer)
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return err
	}
}

// compact forgets all versions but the last.
func compact(path string) error {
	folder, err := open(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	endpoints := []string{address("http", folder.ports.EtcdClient)}
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer client.Close()
	last, err := client.Get(ctx, "/")
	if err != nil {
		return err
	}
	_, err = client.Compact(ctx, last.Header.Revision, clientv3.WithCompactPhysical())
	return err
}
