package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
)

// folder is where one control plane keeps what it is made of.
type folder struct {
	path  string
	ports ports
}

// ports are chosen once: a component that is started again listens where it did.
type ports struct {
	EtcdClient        int `json:"etcdClient"`
	EtcdPeer          int `json:"etcdPeer"`
	APIServer         int `json:"kubeApiserver"`
	ControllerManager int `json:"kubeControllerManager"`
	Scheduler         int `json:"kubeScheduler"`
}

// prepare makes a folder from which the components run.
func prepare(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	folder := folder{path: path}
	if err := folder.ports.choose(); err != nil {
		return fmt.Errorf("choose ports: %w", err)
	}
	if err := folder.certify(); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	text, err := json.MarshalIndent(folder.ports, "", "  ")
	if err != nil {
		return err
	}
	// Last: where it is, everything is.
	return os.WriteFile(folder.file("ports.json"), append(text, '\n'), 0o600)
}

// open finds what prepare made.
func open(path string) (folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return folder{}, err
	}
	folder := folder{path: path}
	text, err := os.ReadFile(folder.file("ports.json"))
	if errors.Is(err, os.ErrNotExist) {
		return folder, fmt.Errorf("%s was not prepared: controlplane prepare %s", path, path)
	} else if err != nil {
		return folder, err
	}
	return folder, json.Unmarshal(text, &folder.ports)
}

func (f folder) file(name string) string {
	return filepath.Join(f.path, name)
}

// choose takes free ports, held until all are known so that none comes twice.
func (p *ports) choose() error {
	for _, port := range []*int{&p.EtcdClient, &p.EtcdPeer, &p.APIServer, &p.ControllerManager, &p.Scheduler} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		*port = listener.Addr().(*net.TCPAddr).Port
	}
	return nil
}

func (f folder) apiserver() []string {
	return []string{
		"--advertise-address=127.0.0.1",
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(f.ports.APIServer),
		"--etcd-servers=" + address("http", f.ports.EtcdClient),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--client-ca-file=" + f.file("ca.crt"),
		"--tls-cert-file=" + f.file("apiserver.crt"),
		"--tls-private-key-file=" + f.file("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + f.file("service-accounts.key"),
		"--service-account-signing-key-file=" + f.file("service-accounts.key"),
		"--audit-log-path=" + f.file("audit.log"),
		"--audit-policy-file=" + f.file("audit.yaml"),
		"--cert-dir=" + f.path,
		// Tests start and stop it: what is under way is not waited for.
		"--shutdown-delay-duration=0",
		"--shutdown-send-retry-after=false",
	}
}

func (f folder) controllerManager() []string {
	return append(f.behind("kube-controller-manager", f.ports.ControllerManager),
		"--root-ca-file="+f.file("ca.crt"),
		"--service-account-private-key-file="+f.file("service-accounts.key"),
		"--cluster-signing-cert-file="+f.file("ca.crt"),
		"--cluster-signing-key-file="+f.file("ca.key"),
		"--use-service-account-credentials=true",
		"--controllers=*",
	)
}

func (f folder) scheduler() []string {
	return f.behind("kube-scheduler", f.ports.Scheduler)
}

// behind is what components have in common that work through the API server.
func (f folder) behind(name string, port int) []string {
	kubeconfig := f.file(name + ".kubeconfig")
	return []string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--cert-dir=" + f.path,
	}
}

func address(scheme string, port int) string {
	return scheme + "://127.0.0.1:" + strconv.Itoa(port)
}

func local(scheme string, port int) []url.URL {
	return []url.URL{{Scheme: scheme, Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}
}
